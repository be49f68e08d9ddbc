package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/trust"
	"github.com/hbmfs/hbmfs/layout"
)

const (
	sizesVersion = 1
	maxSizes     = 1 << 30 // bytes of a file of sizes
)

// sizes remembers the decoded sizes of files that do not say them where they begin and end, so that they are learned
// once. It is a file, in JSON, of one source; the last of several mounts to write it wins. One that cannot be read is
// forgotten.
type sizes struct {
	path string // "" to forget all at the end

	mu    sync.Mutex
	files map[string]sized // by name
	fresh bool             // differs from the file
}

// sized has the sizes of a version of a file.
type sized struct {
	Version string `json:"version"`
	Stored  int64  `json:"stored"`
	Decoded int64  `json:"decoded"`
}

type sizesFile struct {
	Version int              `json:"version"`
	Files   map[string]sized `json:"files"`
}

// openSizes reads the sizes that a file remembers, if any.
func openSizes(path string) *sizes {
	s := &sizes{path: path, files: map[string]sized{}}
	if path == "" {
		return s
	}
	text, err := readOwn(path)
	var f sizesFile
	if err == nil && json.Unmarshal(text, &f) == nil && f.Version == sizesVersion {
		for name, one := range f.Files {
			if one.Decoded >= 0 && one.Decoded <= maxPlain {
				s.files[name] = one
			}
		}
	}
	return s
}

// readOwn reads a file that nobody but this user and root can have written.
func readOwn(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = trust.File(&st)
	}
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxSizes) {
		err = fs.ErrInvalid
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(file, maxSizes))
}

// get gives the decoded size of o.
func (s *sizes) get(o *layout.Object) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.files[o.Name]
	return one.Decoded, ok && one.Version == o.Version && one.Stored == o.Size
}

func (s *sizes) put(o *layout.Object, decoded int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := sized{o.Version, o.Size, decoded}
	s.fresh = s.fresh || s.files[o.Name] != one
	s.files[o.Name] = one
}

// forgetOthers forgets all files but objects.
func (s *sizes) forgetOthers(objects []*layout.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := make(map[string]sized, len(s.files))
	for _, o := range objects {
		if one, ok := s.files[o.Name]; ok {
			kept[o.Name] = one
		}
	}
	s.fresh = s.fresh || len(kept) < len(s.files)
	s.files = kept
}

// save writes the file, if there is anything new.
func (s *sizes) save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fresh || s.path == "" {
		return nil
	}
	text, err := json.Marshal(sizesFile{sizesVersion, s.files})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(s.path), 0o700) // names of files may be secret
	}
	if err == nil {
		err = replaceFile(s.path, text)
	}
	if err != nil {
		return fmt.Errorf("remember what files decode to: %w", err)
	}
	s.fresh = false
	return nil
}

// replaceFile writes a file that is there as a whole or not at all.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		if gone := os.Remove(f.Name()); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}
