package csi_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// shard is the file of each checkpoint that pods write.
const shard = "shard.bin"

// checkpoint acts as a program in a checkpoint volume. The order's file is the checkpoint, whose one file has that content.
func (p *program) checkpoint(o order, path string) (known bool, err error) {
	switch o.Do {
	case "begin": // through the kernel
		if err := begin(path + ".tmp"); err != nil {
			return true, err
		}
		return true, fill(path+".tmp", content(o.File))
	case "just begin":
		return true, begin(path + ".tmp")
	case "fill":
		return true, fill(path+".tmp", content(o.File))
	case "publish":
		return true, os.Rename(path+".tmp", path)
	case "publish by hbmfs":
		out, err := exec.Command("/bin/hbmfs", "publish", path+".tmp").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("hbmfs publish: %w: %s", err, out)
		}
		return true, err
	case "begin past": // past the kernel
		if err := p.beginPast(path, o.File.Size); err != nil {
			return true, err
		}
		return true, p.fillPast(content(o.File))
	case "just begin past":
		return true, p.beginPast(path, o.File.Size)
	case "fill past":
		return true, p.fillPast(content(o.File))
	case "publish past":
		return true, p.draft.Publish(context.Background(), 1, int64(o.File.Size))
	case "remove":
		return true, os.Remove(path)
	case "change": // what is published: every way must be refused
		return true, change(path)
	case "owner": // of what was written, in the file's size's place
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return true, err
		}
		if st.Uid != 1000 || st.Gid != uint32(o.File.Size) {
			return true, fmt.Errorf("%s belongs to user %d and group %d, want 1000 and %d", path, st.Uid, st.Gid, o.File.Size)
		}
		return true, nil
	}
	return false, nil
}

func begin(path string) error { return os.Mkdir(path, 0o755) }

// fill writes a draft that has begun.
func fill(path string, data []byte) error {
	f, err := os.Create(filepath.Join(path, shard))
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// beginPast begins a draft, and makes its file.
func (p *program) beginPast(path string, size int) (err error) {
	ctx := context.Background()
	if p.draft, err = control.BeginDraft(ctx, path, 0, 1, "pod"); err != nil {
		return err
	}
	p.first, p.pens, err = p.draft.Add(ctx, control.NewFile{Name: shard, Size: int64(size)})
	return err
}

// fillPast writes the file of that draft, which then waits to be published.
func (p *program) fillPast(data []byte) error {
	pen := p.pens[0]
	_, err := pen.WriteAt(data, 0)
	if err = errors.Join(err, pen.Truncate(int64(len(data))), pen.Sync(), pen.Close()); err != nil {
		return err
	}
	var sums []uint32
	for at := 0; at < len(data); at += control.SumChunk {
		sums = append(sums, crc32.Checksum(data[at:min(at+control.SumChunk, len(data))], crc32.MakeTable(crc32.Castagnoli)))
	}
	return p.draft.Seal(context.Background(), p.first, sums)
}

// change tells of each way that changed something.
func change(path string) error {
	var errs []error
	for what, do := range map[string]func() error{
		"a new draft":    func() error { return os.Mkdir(path+"-more.tmp", 0o755) },
		"a new file":     func() error { return os.WriteFile(filepath.Join(path, "new"), nil, 0o644) },
		"writing":        func() error { _, err := os.OpenFile(filepath.Join(path, shard), os.O_WRONLY, 0); return err },
		"truncating":     func() error { return os.Truncate(filepath.Join(path, shard), 0) },
		"removing":       func() error { return os.Remove(filepath.Join(path, shard)) },
		"renaming":       func() error { return os.Rename(path, path+"-2") },
		"removing all":   func() error { return os.Remove(path) },
		"another's mode": func() error { return os.Chmod(filepath.Join(path, shard), 0o777) },
		"past the kernel": func() error {
			d, err := control.BeginDraft(context.Background(), path+"-past", 0, 1, "pod")
			if err == nil {
				_ = d.Drop(context.Background()) // the test has failed
			}
			return err
		},
	} {
		if err := do(); err == nil {
			errs = append(errs, errors.New(what+" was done"))
		}
	}
	return errors.Join(errs...)
}
