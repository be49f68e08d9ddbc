package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const mostDepth = 64 // of directories in a checkpoint: each has a descriptor open while they are walked

// openParent opens the directory that checkpoints lie in. It makes those that are missing, each safe from a power loss.
func openParent(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
		return root, err
	}
	above, err := openParent(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = above.Close() }() // nothing is written through it any more
	if err := above.Mkdir(filepath.Base(dir), 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := syncDir(above, "."); err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// syncDir makes the names in a directory safe.
func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", filepath.Join(root.Name(), name), err)
	}
	return nil
}

// rename renames within a directory. Unlike os.Root's it leaves replacement to rename(2): of directories only an empty one
// is replaced.
func rename(root *os.Root, from, to string) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // nothing was written through it
	if err := unix.Renameat(int(d.Fd()), from, int(d.Fd()), to); err != nil {
		return &os.LinkError{Op: "rename", Old: filepath.Join(root.Name(), from), New: filepath.Join(root.Name(), to), Err: err}
	}
	return nil
}

// openRegular opens a file for reading, and follows no link to it.
func openRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	return openRegularAs(root, name, os.O_RDONLY)
}

// openRegularAs is openRegular with the flags of open(2).
func openRegularAs(root *os.Root, name string, flags int) (*os.File, fs.FileInfo, error) {
	named, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !named.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is no regular file", filepath.Join(root.Name(), name))
	}
	f, err := root.OpenFile(name, flags, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !os.SameFile(named, info) {
		err = fmt.Errorf("%s was replaced while it was opened", filepath.Join(root.Name(), name))
	}
	if err != nil {
		_ = f.Close() // opened for reading: nothing is lost
		return nil, nil, err
	}
	return f, info, nil
}

// openDir opens a directory in root, and follows no link to it.
func openDir(root *os.Root, name string) (*os.Root, error) {
	named, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !named.IsDir() {
		return nil, fmt.Errorf("%s is no directory", filepath.Join(root.Name(), name))
	}
	d, err := root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if info, err := d.Stat("."); err != nil || !os.SameFile(named, info) {
		_ = d.Close() // nothing was done in it
		return nil, errors.Join(err, fmt.Errorf("%s was replaced while it was opened", filepath.Join(root.Name(), name)))
	}
	return d, nil
}

// walk calls each for everything below a directory, a directory before its entries.
func walk(root *os.Root, dir string, depth int, each func(name string, info fs.FileInfo) error) error {
	if depth > mostDepth {
		return failf(ErrInvalid, "%s has directories %d deep, more than a checkpoint can have", root.Name(), depth)
	}
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // opened for reading
	for {
		const some = 1024 // each may end the walk before a large directory takes memory
		names, err := d.Readdirnames(some)
		for _, base := range names {
			name := path.Join(dir, base)
			info, err := root.Lstat(name)
			if err == nil {
				err = each(name, info)
			}
			if err == nil && info.IsDir() {
				err = walk(root, name, depth+1, each)
			}
			if err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// isEmpty tells whether a directory has nothing in it.
func isEmpty(root *os.Root, name string) bool {
	d, err := root.Open(name)
	if err != nil {
		return false
	}
	names, _ := d.Readdirnames(1) // io.EOF where there is none
	_ = d.Close()                 // opened for reading
	return len(names) == 0
}

// removeAll removes a directory with all below it, and stops when ctx ends.
func removeAll(ctx context.Context, dir *os.Root, base string) error {
	_ = walk(dir, base, 0, func(name string, info fs.FileInfo) error {
		if !info.IsDir() {
			_ = dir.Remove(name)
		}
		return ctx.Err()
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	return dir.RemoveAll(base) // removes the rest, or says why that stays
}

// removeHidden removes a draft, or the remains of a checkpoint. It tells whether something was there. The name's lock is held.
func removeHidden(ctx context.Context, dir *os.Root, base string, of trust) (bool, error) {
	info, err := dir.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = of.check(dir, base, info, fs.ModeDir)
	}
	if err == nil {
		err = removeAll(ctx, dir, base)
	}
	if err != nil {
		return false, fmt.Errorf("remove leftover %s: %w", filepath.Join(dir.Name(), base), err)
	}
	return true, nil
}
