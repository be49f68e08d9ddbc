package inspect

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/hbmfs/hbmfs/layout"
)

// Sums are a file's checksums in the manifest beside it.
type Sums struct {
	block  int64
	size   int64
	sums   layout.BlockSums
	absent string // why there are none
}

// None says why nothing was compared: there are no checksums, or the bytes read hold no whole block.
func (s *Sums) None() string {
	if s.absent != "" {
		return s.absent
	}
	return fmt.Sprintf("what was read holds no whole block of %d bytes, of which %s has checksums", s.block, layout.ManifestName)
}

// Manifest gives the manifest beside a source that is one file of this machine, nil where there is none that can be used.
func Manifest(source string) []byte {
	if info, err := os.Stat(source); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	_, data, err := beside(source, layout.MaxTokensManifest)
	if err != nil {
		return nil // --verify reports its error
	}
	return data
}

// beside reads the manifest beside a file. It is nil where there is none.
func beside(name string, most int64) (path string, data []byte, err error) {
	path = filepath.Join(filepath.Dir(name), layout.ManifestName)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return path, nil, nil
	case err != nil:
		return path, nil, err
	case info.Size() > most || !info.Mode().IsRegular():
		return path, nil, fmt.Errorf("%s has %d bytes, at most %d of a regular file are read", path, info.Size(), most)
	}
	data, err = os.ReadFile(path)
	return path, data, err
}

// SumsOf finds the checksums of a file in the manifest beside it.
func SumsOf(name string, size int64) (*Sums, error) {
	manifestPath, data, err := beside(name, 1<<30)
	if err != nil {
		return nil, err
	}
	if data == nil {
		return &Sums{absent: "no " + layout.ManifestName + " lies beside it"}, nil
	}
	m, err := layout.ParseManifest(data)
	if err != nil {
		return nil, err
	}
	for i := range m.Files {
		if m.Files[i].Name != filepath.Base(name) {
			continue
		}
		if m.Files[i].Size != size {
			return nil, fmt.Errorf("%s has %d bytes, %s says %d", name, size, manifestPath, m.Files[i].Size)
		}
		return &Sums{block: m.Files[i].CRC32CBlock, size: size, sums: m.Files[i].CRC32C}, nil
	}
	return &Sums{absent: manifestPath + " does not list it"}, nil
}

// Check compares the blocks that lie wholly in data, which begins at offset of the file, and gives their bytes.
func (s *Sums) Check(offset int64, data []byte) (checked int64, err error) {
	if s.absent != "" {
		return 0, nil
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for k := (offset + s.block - 1) / s.block; ; k++ {
		first, last := k*s.block, min((k+1)*s.block, s.size)
		if first >= s.size || last > offset+int64(len(data)) {
			return checked, nil
		}
		if got := crc32.Checksum(data[first-offset:last-offset], table); got != s.sums[k] {
			return checked, fmt.Errorf("bytes %d to %d have the checksum %08x, the manifest says %08x", first, last, got, s.sums[k])
		}
		checked += last - first
	}
}
