package check

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Bounds of a recording, live or loaded: a hostile one must not fill the memory.
const (
	mostEntries = 50_000
	mostFile    = 1 << 20
	mostBytes   = 64 << 20
)

// errTooMuch says that a tree or a recording holds more than a machine's facts do.
var errTooMuch = errors.New("there is too much in it for the facts of one machine: give hbmfs check a tree or a recording that hbmfs made")

// Open loads a recording, or captures a directory that is a copy of a machine.
func Open(path string) (*Recording, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		root, err := os.OpenRoot(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = root.Close() }() // opened for reading
		return CaptureTree(root.FS())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	return Load(f)
}

// Save writes the recording to a file, whole or not at all.
func (s *Recording) Save(name string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".hbmfs-check-*")
	if err != nil {
		return err
	}
	err = errors.Join(s.Record(f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Record writes the recording as tar.zst, byte for byte the same for the same recording.
func (s *Recording) Record(w io.Writer) error {
	z, err := zstd.NewWriter(w)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		if name == "." {
			continue
		}
		if err := s.entries[name].write(t, name); err != nil {
			return fmt.Errorf("record %s: %w", name, err)
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func (e *entry) write(t *tar.Writer, name string) error {
	h := &tar.Header{Name: name, Mode: 0o644, Format: tar.FormatPAX}
	switch e.kind {
	case kindDir:
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
	case kindLink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.target
	case kindDevice:
		h.Typeflag = tar.TypeChar
	case kindFile:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(e.data))
		if e.denied {
			h.Mode = 0 // as it was for the process that recorded it
		}
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := t.Write(e.data)
	return err
}

// Load reads a recording of Record. It trusts nothing in it.
func Load(r io.Reader) (*Recording, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderMaxMemory(mostBytes), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("open the recording: %w", err)
	}
	defer z.Close()
	s, total := NewRecording(), int64(0)
	t := tar.NewReader(io.LimitReader(z, 2*mostBytes))
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the recording (it must be one that hbmfs check --record made): %w", err)
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "/"))
		if name == "." || name == ".." || strings.HasPrefix(name, "../") {
			continue
		}
		if total += h.Size; len(s.entries) >= mostEntries || h.Size > mostFile || total > mostBytes || strings.Count(name, "/") > 64 {
			return nil, fmt.Errorf("read the recording: %s: %w", name, errTooMuch)
		}
		e := &entry{}
		switch h.Typeflag {
		case tar.TypeDir:
			e.kind = kindDir
		case tar.TypeSymlink:
			e.kind, e.target = kindLink, h.Linkname
		case tar.TypeChar, tar.TypeBlock:
			e.kind = kindDevice
		case tar.TypeReg:
			e.kind, e.denied = kindFile, h.Mode == 0
			if e.data, err = io.ReadAll(t); err != nil {
				return nil, fmt.Errorf("read the recording: %s: %w", name, err)
			}
		default:
			continue
		}
		s.put(name, e)
	}
}
