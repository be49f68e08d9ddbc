package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// set is the packed dataset and its mount: the files by their names, and the view over all of them.
type set struct {
	data  string
	mount *blackbox.Mount
	names []string // below data, sorted
	bins  []string // those of names that hold tokens
	view  string   // path of tokens.npy
}

func openSet(data string, m *blackbox.Mount) (*set, error) {
	s := &set{data: data, mount: m}
	err := filepath.WalkDir(data, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		s.names = append(s.names, name)
		if filepath.Ext(name) == ".bin" {
			s.bins = append(s.bins, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list what was packed: %w", err)
	}
	if len(s.bins) < 2 {
		return nil, fmt.Errorf("pack wrote %d shards, and stitching needs two", len(s.bins))
	}
	if s.view, err = m.View("tokens.npy"); err != nil {
		return nil, err
	}
	return s, nil
}

// sources returns the paths of names at the origin.
func (s *set) sources(names []string) []string {
	paths := make([]string, 0, len(names))
	for _, name := range names {
		paths = append(paths, filepath.Join(s.data, name))
	}
	return paths
}

// mounted returns the paths of names in the mount.
func (s *set) mounted(names []string) []string {
	paths := make([]string, 0, len(names))
	for _, name := range names {
		paths = append(paths, s.mount.Path(name))
	}
	return paths
}

// verify compares every file in the mount, and the view's tokens, with the origin.
func (d *demo) verify(ctx context.Context, s *set) error {
	origins, mounted := s.sources(s.names), s.mounted(s.names)
	for i, name := range s.names {
		want, err := hashFiles(ctx, origins[i])
		if err != nil {
			return err
		}
		got, err := hashFiles(ctx, mounted[i])
		if err != nil {
			return err
		}
		if err := d.verdict(name, got, want); err != nil {
			return err
		}
	}
	// No code of hbmfs takes part in this side: the shards as pack left them, one after the other.
	want, err := hashFiles(ctx, s.sources(s.bins)...)
	if err != nil {
		return err
	}
	got, err := hashView(ctx, s.view)
	if err != nil {
		return err
	}
	relative, err := filepath.Rel(d.mnt, s.view)
	if err != nil {
		return fmt.Errorf("find the view: %w", err)
	}
	return d.verdict(fmt.Sprintf("%s (its tokens, against the %d shards)", relative, len(s.bins)), got, want)
}

// digest is the hash of a run of bytes, with their number.
type digest struct {
	sum  []byte
	size int64
}

func (d *demo) verdict(name string, got, want digest) error {
	if got.size != want.size || !bytes.Equal(got.sum, want.sum) {
		return fmt.Errorf("%s differs: %d bytes with SHA-256 %x through the mount, %d bytes with %x at the origin",
			name, got.size, got.sum, want.size, want.sum)
	}
	d.say("   same  %x  %11d B  %s", got.sum[:6], got.size, name)
	return nil
}

// hashFiles hashes files as if they were one.
func hashFiles(ctx context.Context, paths ...string) (digest, error) {
	h := sha256.New()
	var size int64
	for _, path := range paths {
		n, err := addFile(ctx, h, path, 0)
		if err != nil {
			return digest{}, err
		}
		size += n
	}
	return digest{h.Sum(nil), size}, nil
}

// hashView hashes the data behind the header of a .npy file, and checks that the header promises just that.
func hashView(ctx context.Context, path string) (digest, error) {
	start, header, err := npyHeader(path)
	if err != nil {
		return digest{}, err
	}
	h := sha256.New()
	size, err := addFile(ctx, h, path, start)
	if err != nil {
		return digest{}, err
	}
	if shape := fmt.Sprintf("(%d,)", size/2); !strings.Contains(header, "'<u2'") || !strings.Contains(header, shape) {
		return digest{}, fmt.Errorf("%s: header %q, want dtype '<u2' and shape %s", path, header, shape)
	}
	return digest{h.Sum(nil), size}, nil
}

// npyHeader returns where the array starts and the header's text (source: NumPy, numpy/lib/format.py).
func npyHeader(path string) (start int64, text string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", fmt.Errorf("verify: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	prefix := make([]byte, 12)
	if _, err := io.ReadFull(f, prefix); err != nil {
		return 0, "", fmt.Errorf("verify %s: %w", path, err)
	}
	if !bytes.HasPrefix(prefix, []byte("\x93NUMPY")) {
		return 0, "", fmt.Errorf("verify %s: it is no .npy file", path)
	}
	// Version 1 has a length of two bytes, later ones of four.
	at, length := int64(10), int64(binary.LittleEndian.Uint16(prefix[8:]))
	if prefix[6] > 1 {
		at, length = 12, int64(binary.LittleEndian.Uint32(prefix[8:]))
	}
	const longest = 1 << 20
	if length > longest {
		return 0, "", fmt.Errorf("verify %s: a header of %d bytes", path, length)
	}
	header := make([]byte, length)
	if _, err := f.ReadAt(header, at); err != nil {
		return 0, "", fmt.Errorf("verify %s: %w", path, err)
	}
	return at + length, string(header), nil
}

// addFile feeds a file to a hash, from byte start on, and returns how many bytes that was.
func addFile(ctx context.Context, h hash.Hash, path string, start int64) (int64, error) {
	var total int64
	err := readFile(ctx, path, start, func(block []byte) {
		h.Write(block)
		total += int64(len(block))
	})
	return total, err
}

// readFile reads a file in blocks of 1 MiB, from byte start on.
func readFile(ctx context.Context, path string, start int64, each func(block []byte)) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	if _, err := f.Seek(start, io.SeekStart); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	block := make([]byte, 1<<20)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := f.Read(block)
		each(block[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
}
