package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// shard is the file of each checkpoint that pods write, of shardSize bytes, which are no whole pages.
const (
	shard     = "shard.bin"
	shardSize = 5<<20 + 123
)

// checkpoint acts as a program in a checkpoint volume. known is false for other orders.
func (s *server) checkpoint(what, name string, a *answer) (known bool, err error) {
	path := filepath.Join(root, name)
	switch what {
	case "begin": // by the kernel
		err = begin(path+".tmp", name)
	case "publish":
		err = os.Rename(path+".tmp", path)
	case "begin-past": // past the kernel
		err = s.beginPast(path, name)
	case "publish-past":
		if s.drafts[name] == nil {
			return true, fmt.Errorf("no draft %s was begun past the kernel", name)
		}
		err = s.drafts[name].Publish(context.Background(), 1, shardSize)
	case "remove":
		err = os.Remove(path)
	case "change":
		err = change(path)
	case "see":
		_, err = os.Lstat(path)
	case "list":
		var entries []os.DirEntry
		entries, err = os.ReadDir(path)
		for _, e := range entries {
			a.Facts = append(a.Facts, e.Name())
		}
	case "owner":
		var st unix.Stat_t
		err = unix.Stat(path, &st)
		a.Facts = []string{fmt.Sprint("Uid ", st.Uid), fmt.Sprint("Gid ", st.Gid), fmt.Sprintf("Mode %o", st.Mode&0o7777)}
	default:
		return false, nil
	}
	return true, err
}

// content is the text of a checkpoint's file. Readers know it by the file's name in the volume.
func content(name string) []byte {
	p := make([]byte, shardSize)
	fill(p, filepath.Join(name, shard), 0)
	return p
}

func begin(dir, name string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, shard))
	if err != nil {
		return err
	}
	_, err = f.Write(content(name))
	return errors.Join(err, f.Sync(), f.Close())
}

// beginPast writes a draft, which waits to be published.
func (s *server) beginPast(path, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	draft, err := control.BeginDraft(ctx, path, 0, 1, "pod")
	if err != nil {
		return err
	}
	first, pens, err := draft.Add(ctx, control.NewFile{Name: shard, Size: shardSize})
	if err != nil {
		return errors.Join(err, draft.Drop(ctx))
	}
	data := content(name)
	_, err = pens[0].WriteAt(data, 0)
	if err = errors.Join(err, pens[0].Truncate(shardSize), pens[0].Sync(), pens[0].Close()); err != nil {
		return errors.Join(err, draft.Drop(ctx))
	}
	var sums []uint32
	for at := 0; at < len(data); at += control.SumChunk {
		sums = append(sums, crc32.Checksum(data[at:min(at+control.SumChunk, len(data))], crc32.MakeTable(crc32.Castagnoli)))
	}
	if s.drafts == nil {
		s.drafts = map[string]*control.DraftClient{}
	}
	s.drafts[name] = draft
	return draft.Seal(ctx, first, sums)
}

// change tells of each way that changed a published checkpoint.
func change(path string) (err error) {
	file := filepath.Join(path, shard)
	for what, do := range map[string]func() error{
		"a new file was made": func() error { return os.WriteFile(filepath.Join(path, "new"), nil, 0o644) },
		"it was opened to be written": func() error {
			f, err := os.OpenFile(file, os.O_WRONLY, 0)
			if err == nil {
				_ = f.Close() // the test has failed
			}
			return err
		},
		"it was truncated":         func() error { return os.Truncate(file, 0) },
		"its file was removed":     func() error { return os.Remove(file) },
		"its file was renamed":     func() error { return os.Rename(file, file+"-2") },
		"it was renamed":           func() error { return os.Rename(path, path+"-2") },
		"its file's mode changed":  func() error { return os.Chmod(file, 0o777) },
		"its file's times changed": func() error { return unix.Utimes(file, make([]unix.Timeval, 2)) },
	} {
		if do() == nil {
			err = errors.Join(err, fmt.Errorf("%s: %s", path, what))
		}
	}
	return err
}
