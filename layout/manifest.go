package layout

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"path/filepath"
	"strings"
)

// ManifestName is the name of the manifest in the directory that `hbmfs pack` wrote.
const ManifestName = "hbmfs-manifest.json"

// ManifestBlock is the block that `hbmfs pack` checksums by, in bytes.
const ManifestBlock = 1 << 20

const (
	manifestVersion  = 1
	manifestMinBlock = 4 << 10
	manifestMaxBlock = 1 << 30
)

// Manifest lists the files that `hbmfs pack` wrote: size, token count and checksums of each. On disk it is the JSON
// file [ManifestName] beside the files.
type Manifest struct {
	Version   int            `json:"hbmfs_manifest"` // 1
	Format    string         `json:"format"`         // megatron, llmc, nanogpt, npy, mds
	DType     string         `json:"dtype"`          // as DType.String gives it
	Tokenizer string         `json:"tokenizer"`      // empty where the source was tokenized already
	Tokens    int64          `json:"tokens"`         // the sum over Files
	Documents int64          `json:"documents"`      // the sum over Files
	Files     []ManifestFile `json:"files"`
}

// ManifestFile is one file of a Manifest. A document that spans files counts in the one that holds its end.
type ManifestFile struct {
	Name        string    `json:"name"` // local, slash-separated
	Size        int64     `json:"size"` // bytes
	Tokens      int64     `json:"tokens"`
	Documents   int64     `json:"documents"`
	SHA256      string    `json:"sha256"`       // 64 lower-case hex digits
	CRC32CBlock int64     `json:"crc32c_block"` // bytes of a block, a power of two from 4 KiB to 1 GiB
	CRC32C      BlockSums `json:"crc32c"`       // one per block, the last block may be short
}

// BlockSums are CRC-32C (Castagnoli) checksums, one per block. In JSON they are the base64 of little-endian u32s.
type BlockSums []uint32

// MarshalText gives the base64 of s.
func (s BlockSums) MarshalText() ([]byte, error) {
	raw := make([]byte, 0, 4*len(s))
	for _, sum := range s {
		raw = binary.LittleEndian.AppendUint32(raw, sum)
	}
	return base64.StdEncoding.AppendEncode(nil, raw), nil
}

// UnmarshalText reads the text that MarshalText gives.
func (s *BlockSums) UnmarshalText(text []byte) error {
	raw, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("crc32c is not base64: %w", err)
	}
	if len(raw)%4 != 0 {
		return fmt.Errorf("crc32c holds %d bytes, which is no whole number of u32", len(raw))
	}
	sums := make(BlockSums, 0, len(raw)/4)
	for ; len(raw) > 0; raw = raw[4:] {
		sums = append(sums, binary.LittleEndian.Uint32(raw))
	}
	*s = sums
	return nil
}

// ParseManifest reads a manifest. It refuses unknown keys, duplicate names and names that are not local. Counts must
// not be negative, and must add up. Checksums must fit the size. It allocates in proportion to data.
func ParseManifest(data []byte) (*Manifest, error) {
	var m Manifest
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return nil, fmt.Errorf("parse %s: %w", ManifestName, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse %s: something follows the object at byte %d", ManifestName, dec.InputOffset())
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("parse %s: %w", ManifestName, err)
	}
	return &m, nil
}

// Marshal returns the JSON that ParseManifest reads. It fails on a manifest that ParseManifest would refuse.
func (m *Manifest) Marshal() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("write %s: %w", ManifestName, err)
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", ManifestName, err)
	}
	return append(data, '\n'), nil
}

func (m *Manifest) check() error {
	if m.Version != manifestVersion {
		return fmt.Errorf("hbmfs_manifest is %d, this program knows %d", m.Version, manifestVersion)
	}
	if shortDType(m.DType) == DTypeUnknown {
		return fmt.Errorf("dtype %q is not known", m.DType)
	}
	seen := make(map[string]bool, len(m.Files))
	var tokens, documents int64
	for i := range m.Files {
		f := &m.Files[i]
		if err := f.check(); err != nil {
			return fmt.Errorf("file %q: %w", f.Name, err)
		}
		if seen[f.Name] {
			return fmt.Errorf("file %q: the name is there twice", f.Name)
		}
		seen[f.Name] = true
		if f.Tokens > math.MaxInt64-tokens || f.Documents > math.MaxInt64-documents {
			return fmt.Errorf("file %q: the counts overflow 64 bits", f.Name)
		}
		tokens += f.Tokens
		documents += f.Documents
	}
	if tokens != m.Tokens || documents != m.Documents {
		return fmt.Errorf("%d tokens and %d documents are claimed, the files have %d and %d",
			m.Tokens, m.Documents, tokens, documents)
	}
	return nil
}

func (f *ManifestFile) check() error {
	if f.Name == "." || f.Name == ManifestName || strings.ContainsAny(f.Name, "\\\x00") || !filepath.IsLocal(f.Name) ||
		filepath.ToSlash(filepath.Clean(f.Name)) != f.Name {
		return errors.New("the name does not stay below the manifest's directory in plain slash form")
	}
	if f.Size < 0 || f.Tokens < 0 || f.Documents < 0 {
		return errors.New("size, tokens and documents must not be negative")
	}
	if sum, err := hex.DecodeString(f.SHA256); err != nil || len(sum) != sha256.Size || strings.ToLower(f.SHA256) != f.SHA256 {
		return errors.New("sha256 is not 64 lower-case hex digits")
	}
	b := f.CRC32CBlock
	if b < manifestMinBlock || b > manifestMaxBlock || b&(b-1) != 0 {
		return fmt.Errorf("crc32c_block is %d, not a power of two from %d to %d", b, manifestMinBlock, manifestMaxBlock)
	}
	blocks := f.Size / b
	if f.Size%b != 0 {
		blocks++
	}
	if int64(len(f.CRC32C)) != blocks {
		return fmt.Errorf("crc32c has %d sums, %d bytes need %d", len(f.CRC32C), f.Size, blocks)
	}
	return nil
}

// SumFile reads size bytes of r once and sets f's Size, SHA256 and checksums. It holds 1 MiB for any size.
func (f *ManifestFile) SumFile(ctx context.Context, r io.ReaderAt, size int64) error {
	f.Size, f.CRC32CBlock, f.CRC32C = size, ManifestBlock, nil
	sum, err := f.scan(ctx, r, func(_ int64, crc uint32) error {
		f.CRC32C = append(f.CRC32C, crc)
		return nil
	})
	f.SHA256 = sum
	return err
}

// Verify reads r once from its start and compares it with f. The error names the file and where it first differs: the
// offset of a block, or the size. It holds 1 MiB for any size.
func (f *ManifestFile) Verify(ctx context.Context, r io.ReaderAt) error {
	if err := f.check(); err != nil {
		return fmt.Errorf("verify %q: %w", f.Name, err)
	}
	block := 0
	sum, err := f.scan(ctx, r, func(at int64, crc uint32) error {
		want := f.CRC32C[block]
		block++
		if crc != want {
			return fmt.Errorf("verify %q: the block at byte %d has crc32c %08x, the manifest says %08x", f.Name, at, crc, want)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if sum != f.SHA256 {
		return fmt.Errorf("verify %q: sha256 is %s, the manifest says %s (every crc32c fits)", f.Name, sum, f.SHA256)
	}
	// A read of one more byte tells a file that has grown; a reader that fails there otherwise is an error too.
	switch n, err := r.ReadAt(make([]byte, 1), f.Size); {
	case n > 0:
		return fmt.Errorf("verify %q: the file goes on after its %d bytes", f.Name, f.Size)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("verify %q: read at %d: %w", f.Name, f.Size, err)
	}
	return nil
}

// scan reads f.Size bytes, calls block for each CRC32CBlock bytes with their offset and checksum, and returns the hex
// SHA-256 of all.
func (f *ManifestFile) scan(ctx context.Context, r io.ReaderAt, block func(at int64, crc uint32) error) (string, error) {
	table := crc32.MakeTable(crc32.Castagnoli)
	whole := sha256.New()
	buf := make([]byte, min(f.CRC32CBlock, ManifestBlock))
	for start := int64(0); start < f.Size; start += f.CRC32CBlock {
		end := min(f.Size, start+f.CRC32CBlock)
		crc := uint32(0)
		for at := start; at < end; {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			p := buf[:min(int64(len(buf)), end-at)]
			n, err := r.ReadAt(p, at)
			if n < len(p) {
				if err == nil || errors.Is(err, io.EOF) {
					return "", fmt.Errorf("verify %q: the file ends at byte %d of %d", f.Name, at+int64(n), f.Size)
				}
				return "", fmt.Errorf("verify %q: read at %d: %w", f.Name, at, err)
			}
			whole.Write(p)
			crc = crc32.Update(crc, table, p)
			at += int64(n)
		}
		if err := block(start, crc); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(whole.Sum(nil)), nil
}
