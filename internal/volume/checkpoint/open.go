package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Checkpoint is a published checkpoint, opened for reading.
type Checkpoint struct {
	Path     string
	Manifest *Manifest
	dir      *os.Root
}

// Open opens a checkpoint and reads its manifest. The files themselves are not looked at. [ErrNone]: it has no manifest.
// [ErrDamaged]: its bytes differ from the published ones.
func Open(path string) (*Checkpoint, error) {
	in, name, err := split(path)
	if err != nil {
		return nil, err
	}
	parent, err := os.OpenRoot(in)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint %s: %w", path, err)
	}
	defer func() { _ = parent.Close() }() // opened for reading
	return openIn(parent, name)
}

func openIn(parent *os.Root, name string) (c *Checkpoint, err error) {
	c = &Checkpoint{Path: filepath.Join(parent.Name(), name)}
	if c.dir, err = openDir(parent, name); err != nil {
		return nil, fmt.Errorf("open checkpoint %s: %w", c.Path, err)
	}
	if c.Manifest, err = readManifest(c.dir); err != nil {
		if c.removed() {
			err = fmt.Errorf("open checkpoint %s: it was removed meanwhile: %w", c.Path, fs.ErrNotExist)
		}
		_ = c.dir.Close() // opened for reading
		return nil, err
	}
	return c, nil
}

// removed tells whether the checkpoint is no longer at its path. Its missing files are then no damage.
func (c *Checkpoint) removed() bool {
	opened, err := c.dir.Stat(".")
	if err != nil {
		return false
	}
	named, err := os.Lstat(c.Path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(opened, named)
}

// Close closes it.
func (c *Checkpoint) Close() error { return c.dir.Close() }

func readManifest(dir *os.Root) (*Manifest, error) {
	f, info, err := openRegular(dir, ManifestName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failf(ErrNone, "%s is no checkpoint of hbmfs's: it has no %s", dir.Name(), ManifestName)
	}
	if err != nil {
		return nil, fmt.Errorf("read the manifest of %s: %w", dir.Name(), err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	if info.Size() > mostManifest {
		return nil, failf(ErrDamaged, "the manifest of %s is damaged: it has %d bytes, more than any", dir.Name(), info.Size())
	}
	text, err := io.ReadAll(io.LimitReader(f, mostManifest))
	if err != nil {
		return nil, fmt.Errorf("read the manifest of %s: %w", dir.Name(), err)
	}
	m, err := parse(text)
	if err != nil {
		return nil, failf(ErrDamaged, "the manifest of %s is damaged: %v", dir.Name(), err)
	}
	return m, nil
}

// misfit says how a file's type or size differs from the published one. It gives nil where both are, and the system's error
// where nobody can tell.
func (c *Checkpoint) misfit(f *File) error {
	info, err := c.dir.Lstat(f.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failf(ErrDamaged, "it is missing")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return failf(ErrDamaged, "it is no regular file")
	case info.Size() != f.Size:
		return failf(ErrDamaged, "it has %d bytes, %d were published", info.Size(), f.Size)
	}
	return nil
}
