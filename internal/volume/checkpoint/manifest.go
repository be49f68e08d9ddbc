package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// ManifestName is the name of the manifest in a checkpoint.
const ManifestName = ".hbmfs-manifest.json"

// Chunk is how many bytes of a file have a checksum of their own. The last chunk of a file may be shorter.
const Chunk = 4 << 20

// Bounds of a manifest.
const (
	manifestVersion = 1
	mostManifest    = 64 << 20 // bytes: 40 TB of files have sums of 56 MB
	mostFiles       = 1 << 20
	mostParts       = 1 << 20

	sumsInText = 16 / 3                                   // bytes of base64 that a sum takes, rounded down
	mostSize   = mostManifest / sumsInText * int64(Chunk) // of a file whose sums fit
)

// Part says which of the parts of a checkpoint lies in a directory: one of Of, counted from 0. Nodes that write to disks of their
// own publish one part each, under one name.
type Part struct {
	Index int `json:"part"`
	Of    int `json:"parts"`
}

func (p Part) check() error {
	if p.Of < 1 || p.Of > mostParts || p.Index < 0 || p.Index >= p.Of {
		return failf(ErrInvalid, "part %d of %d cannot be: parts are counted from 0, and there are at most %d", p.Index, p.Of, mostParts)
	}
	return nil
}

// File is a file of a checkpoint.
type File struct {
	Name string   // below the checkpoint, slash-separated
	Size int64    // bytes
	Sums []uint32 // CRC-32C (Castagnoli) of each Chunk
}

// Manifest describes a checkpoint.
type Manifest struct {
	Name    string // under which it was published; it may have been renamed since
	Part    Part
	Created time.Time // as the writer's clock had it
	Files   []File
	Dirs    []string // that are empty; others follow from the files. A program of hbmfs 0.2 does not read a manifest with some
}

// Size is the sum of the files' sizes.
func (m *Manifest) Size() (bytes int64) {
	for i := range m.Files {
		bytes += m.Files[i].Size
	}
	return bytes
}

// manifestJSON is a manifest as its file has it. One more field ends it, see sealed.
type manifestJSON struct {
	Version int       `json:"hbmfs_checkpoint"`
	Name    string    `json:"name"`
	Part    int       `json:"part"` // from 0
	Parts   int       `json:"parts"`
	Created time.Time `json:"created"`
	Files   filesJSON `json:"files"`
	Dirs    []string  `json:"empty_directories,omitempty"`
}

type filesJSON []fileJSON

type fileJSON struct {
	Name  string `json:"name"`
	Size  int64  `json:"size"`
	Chunk int64  `json:"chunk"`  // bytes
	Sums  []byte `json:"crc32c"` // of each chunk, little-endian u32, in base64
}

// UnmarshalJSON ends at the first mistake, before a small text has made a large list.
func (l *filesJSON) UnmarshalJSON(text []byte) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if start, err := dec.Token(); err != nil || start != json.Delim('[') {
		return errors.New("its files are no list")
	}
	for dec.More() {
		if len(*l) == mostFiles {
			return fmt.Errorf("it has more than %d files", mostFiles)
		}
		var f fileJSON
		if err := dec.Decode(&f); err != nil {
			return err
		}
		*l = append(*l, f)
	}
	return nil
}

// seal ends a manifest: the CRC-32C of all bytes before it, in eight hex digits.
const seal = `,"manifest_crc32c":"%08x"}` + "\n"

const sealSize = len(seal) - len("%08x") + 8

// marshal gives the text that parse reads. It refuses the manifests that parse would refuse.
func (m *Manifest) marshal() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	j := manifestJSON{manifestVersion, m.Name, m.Part.Index, m.Part.Of, m.Created, make(filesJSON, len(m.Files)), m.Dirs}
	for i, f := range m.Files {
		sums := make([]byte, 0, 4*len(f.Sums))
		for _, sum := range f.Sums {
			sums = binary.LittleEndian.AppendUint32(sums, sum)
		}
		j.Files[i] = fileJSON{f.Name, f.Size, Chunk, sums}
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("write a manifest: %w", err)
	}
	text = bytes.TrimSuffix(text, []byte("}"))
	text = fmt.Appendf(text, seal, crc32.Checksum(text, castagnoli()))
	if len(text) > mostManifest {
		return nil, failf(ErrInvalid, "the manifest would have %d bytes, more than %d: publish it in parts", len(text), mostManifest)
	}
	return text, nil
}

// parse reads a manifest. It allocates in proportion to text.
func parse(text []byte) (*Manifest, error) {
	n := len(text) - sealSize
	if n < 0 || string(text[n:]) != fmt.Sprintf(seal, crc32.Checksum(text[:n], castagnoli())) {
		return nil, errors.New("its end or its checksum is not what was published")
	}
	text = append(text[:n:n], '}')
	var known struct {
		Version int `json:"hbmfs_checkpoint"`
	}
	if err := json.Unmarshal(text, &known); err != nil {
		return nil, err
	}
	if known.Version != manifestVersion {
		return nil, fmt.Errorf("it is of version %d, and this program knows %d", known.Version, manifestVersion)
	}
	var j manifestJSON
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&j); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("something follows it at byte %d", dec.InputOffset())
	}
	m := &Manifest{Name: j.Name, Part: Part{j.Part, j.Parts}, Created: j.Created, Files: make([]File, len(j.Files)), Dirs: j.Dirs}
	for i, f := range j.Files {
		if f.Chunk != Chunk || len(f.Sums)%4 != 0 {
			return nil, fmt.Errorf("file %q has chunks of %d bytes with sums of %d in all", f.Name, f.Chunk, len(f.Sums))
		}
		sums := make([]uint32, 0, len(f.Sums)/4)
		for b := f.Sums; len(b) > 0; b = b[4:] {
			sums = append(sums, binary.LittleEndian.Uint32(b))
		}
		m.Files[i] = File{f.Name, f.Size, sums}
	}
	return m, m.check()
}

func (m *Manifest) check() error {
	if err := m.Part.check(); err != nil {
		return err
	}
	if err := checkName(m.Name); err != nil {
		return failf(ErrInvalid, "the name %q cannot be: %v", m.Name, err)
	}
	if n := len(m.Files) + len(m.Dirs); n > mostFiles {
		return failf(ErrInvalid, "%d files and empty directories are more than a checkpoint can have (%d)", n, mostFiles)
	}
	total := int64(0)
	for i := range m.Files {
		f := &m.Files[i]
		if err := checkFileName(f.Name); err != nil {
			return failf(ErrInvalid, "file %q: %v", f.Name, err)
		}
		if f.Size < 0 || f.Size > math.MaxInt64-total || int64(len(f.Sums)) != chunks(f.Size) {
			return failf(ErrInvalid, "file %q: %d sums cannot be those of %d bytes", f.Name, len(f.Sums), f.Size)
		}
		total += f.Size
	}
	for _, dir := range m.Dirs {
		if err := CheckEntry(dir, true, 0); err != nil {
			return failf(ErrInvalid, "directory %q: %v", dir, err)
		}
	}
	return m.checkTree()
}

// checkTree refuses a name that is there twice, or as a file and as a directory.
func (m *Manifest) checkTree() error {
	isFile := make(map[string]bool, len(m.Files))
	for i := range m.Files {
		name := m.Files[i].Name
		if isFile[name] {
			return failf(ErrInvalid, "file %q is there twice", name)
		}
		isFile[name] = true
	}
	for i := range m.Files {
		if dir := fileAbove(m.Files[i].Name, isFile); dir != "" {
			return failf(ErrInvalid, "%q is a file, and a directory of %q", dir, m.Files[i].Name)
		}
	}
	if leaves := EmptyDirs(m.Dirs, m.Files); len(leaves) != len(m.Dirs) {
		return failf(ErrInvalid, "of %d empty directories some are there twice, or are not empty", len(m.Dirs))
	}
	for _, dir := range m.Dirs {
		if above := fileAbove(dir, isFile); above != "" || isFile[dir] {
			return failf(ErrInvalid, "directory %q is, or lies in, a file", dir)
		}
	}
	return nil
}

// fileAbove gives the first of the directories of a name that is a file, "" for none.
func fileAbove(name string, isFile map[string]bool) string {
	for dir := parentOf(name); dir != ""; dir = parentOf(dir) {
		if isFile[dir] {
			return dir
		}
	}
	return ""
}

// EmptyDirs gives those of some directories that have none of these files and directories in them, in order and once.
func EmptyDirs(dirs []string, files []File) (empty []string) {
	used := map[string]bool{}
	use := func(name string) {
		for dir := parentOf(name); dir != "" && !used[dir]; dir = parentOf(dir) {
			used[dir] = true
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	for i := range files {
		use(files[i].Name)
	}
	for _, dir := range dirs {
		use(dir)
	}
	for _, dir := range dirs {
		if !used[dir] {
			empty = append(empty, dir)
		}
	}
	slices.Sort(empty)
	return slices.Compact(empty)
}

// parentOf gives the directory of a name, "" for the checkpoint itself.
func parentOf(name string) string { return name[:max(0, strings.LastIndexByte(name, '/'))] }

// chunks is the number of sums of so many bytes.
func chunks(size int64) int64 {
	n := size / Chunk
	if size%Chunk != 0 {
		n++
	}
	return n
}

// castagnoli is the table of CRC-32C, which processors compute themselves.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }
