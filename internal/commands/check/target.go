package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// Target is the path that is judged, and where its bytes lie.
type Target struct {
	Path   string   `json:"path"` // absolute, without links
	File   string   `json:"file"` // the file that stands for it: itself, or one in the directory; "" where there is none
	HBMFS  bool     `json:"hbmfs,omitempty"`
	Silent bool     `json:"silent,omitempty"` // it did not answer in time
	Places []Device `json:"places"`
	Note   string   `json:"note,omitempty"` // why its places are not known
}

// Device is a device that bytes lie on.
type Device struct {
	Dev    string `json:"dev"`              // major:minor
	Name   string `json:"name"`             // a file on it
	Direct string `json:"direct,omitempty"` // why it cannot be read with O_DIRECT, "" where it can
}

// mostPlaces bounds how many backing files of a file in a mount are looked at: its shards lie on one device nearly always.
const mostPlaces = 16

// LookAt finds out where the bytes of a path lie. A dead network filesystem lets it hang: run it in a process of its own.
func LookAt(ctx context.Context, name string) (Target, error) {
	full, err := filepath.Abs(name)
	if err == nil {
		full, err = filepath.EvalSymlinks(full)
	}
	if err != nil {
		return Target{}, err
	}
	t := Target{Path: full, File: full}
	info, err := os.Stat(full)
	if err != nil {
		return Target{}, err
	}
	if info.IsDir() {
		if t.File, err = largestFile(full); err != nil {
			return Target{}, err
		}
	}
	if t.File == "" {
		t.Note = "there is no file in " + full + " to read: name one"
		t.Places, err = placesOf(full)
		return t, err
	}
	err = t.Open(ctx, func(f *os.File, name string) error {
		p, err := PlaceOf(f)
		p.Name = name
		if err != nil {
			return err
		}
		for _, known := range t.Places {
			if known.Dev == p.Dev {
				return nil
			}
		}
		t.Places = append(t.Places, p)
		return nil
	})
	return t, err
}

// Open opens the files that the target's bytes lie in, one after the other: itself, or the backing files of hbmfs. f
// must not keep them.
func (t *Target) Open(ctx context.Context, f func(file *os.File, name string) error) error {
	file, err := os.Open(t.File)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for reading
	if _, err := control.Info(file); errors.Is(err, control.ErrNotHBMFS) {
		return f(file, t.File)
	} else if err != nil {
		return err
	}
	t.HBMFS = true
	client, err := control.Dial(ctx, t.File, "hbmfs check")
	if err != nil {
		t.Note = err.Error()
		return f(file, t.File)
	}
	defer func() { _ = client.Close() }() // nothing is kept
	for batch, err := range control.Batches(file, 0, math.MaxInt64, true) {
		if err != nil {
			return err
		}
		objects := batch.Objects()
		if len(objects) == 0 {
			continue
		}
		return lent(ctx, client, batch.Ticket, objects[:min(len(objects), mostPlaces)], f)
	}
	t.Note = "all bytes of " + t.File + " are made by the mount"
	return f(file, t.File)
}

func lent(ctx context.Context, client *control.Client, ticket control.Ticket, objects []uint64, f func(*os.File, string) error) error {
	backing, err := client.Redeem(ctx, ticket, objects)
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range backing {
		if b.File == nil {
			errs = append(errs, b.Err)
			continue
		}
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", b.File.Fd()))
		if err != nil {
			name = b.File.Name()
		}
		errs = append(errs, f(b.File, name), b.File.Close())
	}
	return errors.Join(errs...)
}

func placesOf(dir string) ([]Device, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", dir, err)
	}
	return []Device{{Dev: devText(st.Dev), Name: dir}}, nil
}

func devText(dev uint64) string { return join(int(unix.Major(dev)), int(unix.Minor(dev))) }

// PlaceOf says on which device an open file lies and whether it can be read past the page cache.
func PlaceOf(f *os.File) (Device, error) {
	name := f.Name()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Device{}, fmt.Errorf("stat %s: %w", name, err)
	}
	p := Device{Dev: devText(st.Dev), Name: name}
	const page = 4096
	if st.Size < page || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return p, nil
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		p.Direct = fmt.Sprintf("open with O_DIRECT: %v", err)
		return p, nil
	}
	defer func() { _ = unix.Close(fd) }()                                                                      // opened for reading
	memory, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // aligned as O_DIRECT needs it
	if err != nil {
		return p, fmt.Errorf("map a page: %w", err)
	}
	defer func() { _ = unix.Munmap(memory) }() // it is not used after
	if _, err := unix.Pread(fd, memory, 0); err != nil {
		p.Direct = fmt.Sprintf("read with O_DIRECT: %v", err)
	}
	return p, nil
}

// largestFile gives the largest of a directory's first files, "" where it has none.
func largestFile(dir string) (string, error) {
	const most = 1000
	f, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // opened for reading
	list, err := f.ReadDir(most)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	best, size := "", int64(-1)
	for _, e := range list {
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && info.Size() > size {
			best, size = filepath.Join(dir, e.Name()), info.Size()
		}
	}
	return best, nil
}
