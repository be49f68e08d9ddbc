package mounttest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// CompareTrees compares a mount with its source: the same names in the same order, the same sizes and times, and of
// each file the same bytes however they are read.
func CompareTrees(source, mount string) error {
	want, err := ListTree(source)
	if err != nil {
		return err
	}
	got, err := ListTree(mount)
	if err != nil {
		return err
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("the mount lists\n%q\nthe source\n%q", got, want)
	}
	var all error
	for _, name := range want {
		all = errors.Join(all, compareEntry(filepath.Join(source, name), filepath.Join(mount, name)))
	}
	return all
}

// ListTree returns the relative names of everything below root, in the order of a walk.
func ListTree(root string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		names = append(names, name)
		return err
	})
	return names, err
}

func compareEntry(source, mount string) error {
	want, err := os.Stat(source)
	if err != nil {
		return err
	}
	got, err := os.Stat(mount)
	if err != nil {
		return err
	}
	if !got.ModTime().Equal(want.ModTime()) || got.Mode() != want.Mode()&^0o222 {
		return fmt.Errorf("%s: %v of %v, the source has %v of %v", mount, got.Mode(), got.ModTime(), want.Mode(), want.ModTime())
	}
	if want.IsDir() {
		return nil
	}
	data, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	return CompareFile(mount, data)
}

// CompareFile reads a file of a mount in every way that there is and compares it with want.
func CompareFile(path string, want []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	mapped, err := compareOpen(f, want)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(want) == 0 {
		return nil
	}
	// After the close: loaders map a file and let go of it.
	same := sha256.Sum256(mapped) == sha256.Sum256(want)
	if err := unix.Munmap(mapped); err != nil {
		return err
	}
	if !same {
		return fmt.Errorf("%s: the mapped bytes differ from the source's", path)
	}
	return nil
}

// compareOpen reads an open file by read and pread, and returns a mapping of it unless it is empty.
func compareOpen(f *os.File, want []byte) (mapped []byte, err error) {
	size := int64(len(want))
	if end, err := f.Seek(0, io.SeekEnd); err != nil || end != size {
		return nil, fmt.Errorf("the end is at %d, want %d (%w)", end, size, err)
	}
	if err := comparePreads(f, want); err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	sum := sha256.New()
	if n, err := io.Copy(sum, f); err != nil || n != size {
		return nil, fmt.Errorf("read %d bytes of %d: %w", n, size, err)
	}
	if whole := sha256.Sum256(want); !bytes.Equal(sum.Sum(nil), whole[:]) {
		return nil, errors.New("the bytes that read gives differ from the source's")
	}
	for _, past := range []int64{size, size + 1, size + 1<<20} {
		if n, err := f.ReadAt(make([]byte, 8), past); n != 0 || err != io.EOF {
			return nil, fmt.Errorf("a read at %d of %d gave %d bytes and %w, want the end of the file", past, size, n, err)
		}
	}
	if size == 0 {
		return nil, nil
	}
	return unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
}

// comparePreads reads at odd places: loaders ask for any two bytes, and for more than is there.
func comparePreads(f *os.File, want []byte) error {
	seed := fnv.New64a()
	_, _ = seed.Write([]byte(f.Name())) // a hash cannot fail
	random := rand.New(rand.NewPCG(seed.Sum64(), uint64(len(want))))
	for range 24 {
		off := random.Int64N(int64(len(want)) + 1)
		p := make([]byte, 1+random.IntN(len(want)+64))
		n, err := f.ReadAt(p, off)
		end := min(off+int64(len(p)), int64(len(want)))
		if n != int(end-off) || (err != nil && err != io.EOF) || !bytes.Equal(p[:n], want[off:end]) {
			return fmt.Errorf("a pread of %d bytes at %d gave %d (%w), which are not the source's %d", len(p), off, n, err, end-off)
		}
	}
	return nil
}

// MapFile maps a whole file as loaders do: shared and read-only.
func MapFile(path string) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
}

// CompareContents compares the bytes alone, where the source of a mount is a copy of want.
func CompareContents(want, mount string) error {
	names, err := ListTree(want)
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := os.Stat(filepath.Join(want, name))
		if err != nil {
			return err
		}
		if info.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(want, name))
		if err != nil {
			return err
		}
		if err := CompareFile(filepath.Join(mount, name), data); err != nil {
			return err
		}
	}
	return nil
}
