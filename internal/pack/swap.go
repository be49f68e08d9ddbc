package pack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hbmfs/hbmfs/layout"
)

// Names in the output directory while a dataset is replaced.
const (
	earlierDir    = ".hbmfs-pack-earlier"   // the dataset that is being replaced
	successorName = ".hbmfs-pack-successor" // the manifest of the new one, while its files get their names
)

// swap puts a new dataset in the place of an earlier one, file by file, as POSIX has no other way within a directory:
//
//  1. The earlier files move to earlierDir.
//  2. The new manifest becomes successorName: from here on, the names that it lists are the new dataset's.
//  3. The new files get their names.
//  4. The new manifest gets its own. The new dataset is complete.
//  5. earlierDir is removed.
//
// settle puts the earlier dataset back from any point before the fourth step, and finishes the fifth. A process that is
// killed leaves that to the next one.
type swap struct {
	root   *os.Root
	before func() error // of tests, may be nil: an error stands for a failure of the change that follows
}

// openSwap begins to change names. The caller closes root.
func (o *output) openSwap() (*swap, error) {
	root, err := os.OpenRoot(o.dir)
	if err != nil {
		return nil, fmt.Errorf("open the output directory: %w", err)
	}
	return &swap{root, o.before}, nil
}

// retire is the first step.
func (s *swap) retire(names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := s.change(func() error { return s.root.Mkdir(earlierDir, 0o777) }); err != nil {
		return fmt.Errorf("make room for the earlier dataset, unless another pack does so now: %w", err)
	}
	for _, name := range names {
		if err := s.rename(name, filepath.Join(earlierDir, name)); err != nil {
			return fmt.Errorf("replace %q of the earlier pack: %w", name, err)
		}
	}
	return errors.Join(s.sync(earlierDir), s.sync("."))
}

// announce is the second step. The last of the files is the manifest.
func (s *swap) announce(files []*outFile) error {
	if err := s.rename(filepath.Base(files[len(files)-1].f.Name()), successorName); err != nil {
		return fmt.Errorf("publish the manifest: %w", err)
	}
	return nil
}

// publish does the third step and the fourth.
func (s *swap) publish(files []*outFile) error {
	for _, f := range files[:len(files)-1] {
		if err := s.rename(filepath.Base(f.f.Name()), f.sums.Name); err != nil {
			return fmt.Errorf("publish %q: %w", f.sums.Name, err)
		}
	}
	if err := s.sync("."); err != nil {
		return err
	}
	if err := s.rename(successorName, layout.ManifestName); err != nil {
		return fmt.Errorf("publish the manifest: %w", err)
	}
	if err := s.sync("."); err != nil { // nobody knows which of the names will last
		return errors.Join(err, s.rename(layout.ManifestName, successorName))
	}
	return nil
}

// settle ends a swap that did not come to its end: one of the two datasets is complete afterwards, the other gone. It
// may itself be stopped, and repeated. Where there was no swap it does nothing.
func (s *swap) settle() error {
	data, err := s.root.ReadFile(successorName)
	switch {
	case err == nil:
		if err := s.takeBack(data); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case s.has(layout.ManifestName) && s.has(filepath.Join(earlierDir, layout.ManifestName)):
		return s.drop() // the fourth step was done, as the first moves the earlier manifest
	}
	names, err := s.retired()
	if err != nil || names == nil {
		return err
	}
	for _, name := range names {
		if s.has(name) {
			return fmt.Errorf("%q has been taken meanwhile: move it away", name)
		}
		if err := s.rename(filepath.Join(earlierDir, name), name); err != nil {
			return err
		}
	}
	if err := s.remove(earlierDir); err != nil {
		return err
	}
	return s.sync(".")
}

// takeBack removes the files that a manifest lists, and then successorName.
func (s *swap) takeBack(manifest []byte) error {
	m, err := layout.ParseManifest(manifest)
	if err != nil {
		return err
	}
	for _, f := range m.Files {
		info, err := s.root.Lstat(f.Name)
		if err != nil || !info.Mode().IsRegular() || info.Size() != f.Size {
			continue // it did not get its name
		}
		if err := s.remove(f.Name); err != nil {
			return err
		}
	}
	return s.remove(successorName)
}

// drop is the fifth step. The manifest goes last, because settle looks for it.
func (s *swap) drop() error {
	names, err := s.retired()
	if err != nil || names == nil {
		return err
	}
	for _, name := range names {
		if err := s.remove(filepath.Join(earlierDir, name)); err != nil {
			return err
		}
	}
	return s.remove(earlierDir)
}

// retired returns the files in earlierDir, the manifest last, and nil where that is not there.
func (s *swap) retired() ([]string, error) {
	dir, err := s.root.Open(earlierDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(names, func(a, b string) int {
		if a != b && (a == layout.ManifestName || b == layout.ManifestName) {
			if a == layout.ManifestName {
				return 1
			}
			return -1
		}
		return layout.ComparePaths(a, b)
	})
	return append([]string{}, names...), nil
}

func (s *swap) has(name string) bool {
	_, err := s.root.Lstat(name)
	return err == nil
}

func (s *swap) rename(from, to string) error {
	return s.change(func() error { return s.root.Rename(from, to) })
}

func (s *swap) remove(name string) error {
	return s.change(func() error { return s.root.Remove(name) })
}

func (s *swap) sync(dir string) error {
	return s.change(func() error { return syncDir(filepath.Join(s.root.Name(), dir)) })
}

func (s *swap) change(do func() error) error {
	if s.before != nil {
		if err := s.before(); err != nil {
			return err
		}
	}
	return do()
}
