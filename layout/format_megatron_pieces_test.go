package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// megatronPieces cuts data into n pieces of size bytes and a last one, named as Pythia's are.
func megatronPieces(stem string, data []byte, size, of int) files {
	f := files{}
	for i := 0; len(data) > 0; i++ {
		n := min(size, len(data))
		f[fmt.Sprintf("%s-%05d-of-%05d.bin", stem, i, of)], data = data[:n], data[n:]
	}
	return f
}

func TestMegatronPieces(t *testing.T) {
	idx, bin := megatronSmall()
	for _, c := range []struct{ size, of int }{{5, 2}, {5, 3}, {3, 5}, {13, 1}, {14, 1}, {14, 0}, {7, 1}} {
		f := megatronPieces("d/doc", bin, c.size, c.of)
		f["d/doc.idx"] = idx.bytes()
		v, s := oneSet(t, f)
		if len(s.Shards) != 1 || len(s.Shards[0].Objects) != len(f) || s.Tokens() != 7 || s.Shards[0].Name != "d/doc.bin" {
			t.Errorf("%+v: shards %v", c, s.Shards)
		}
		for path, want := range map[string][]byte{
			"d/doc.bin": bin, "d/doc.idx": idx.bytes(), "d/megatron.idx": idx.bytes(), "d/tokens.bin": bin,
		} {
			if got, ok := readView(t, v, path); !ok || !bytes.Equal(got, want) {
				t.Errorf("%+v: %s = %x, want %x", c, path, got, want)
			}
		}
	}
}

func TestMegatronPiecesThatDoNotFit(t *testing.T) {
	idx, bin := megatronSmall()
	for name, c := range map[string]struct {
		change func(f files)
		object string
		says   string
	}{
		"first missing":  {func(f files) { delete(f, "x-00000-of-00002.bin") }, "x.idx", "x-00000-of-00002.bin is missing"},
		"middle missing": {func(f files) { delete(f, "x-00001-of-00002.bin") }, "x.idx", "x-00001-of-00002.bin is missing"},
		"last missing":   {func(f files) { delete(f, "x-00002-of-00002.bin") }, "x.idx", "x-00002-of-00002.bin is missing"},
		"two missing": {func(f files) {
			delete(f, "x-00001-of-00002.bin")
			delete(f, "x-00002-of-00002.bin")
		}, "x.idx", "x-00001-of-00002.bin is missing"},
		"first short":  {func(f files) { f["x-00000-of-00002.bin"] = bin[:4] }, "x-00000-of-00002.bin", "has 4 bytes"},
		"last short":   {func(f files) { f["x-00002-of-00002.bin"] = bin[:3] }, "x-00002-of-00002.bin", "wants 4 in it"},
		"last long":    {func(f files) { f["x-00002-of-00002.bin"] = bin[:5] }, "x-00002-of-00002.bin", "wants 4 in it"},
		"one too many": {func(f files) { f["x-00003-of-00002.bin"] = bin[:5] }, "x-00003-of-00002.bin", "of at most 2"},
		"other count":  {func(f files) { f["x-00003-of-00007.bin"] = bin[:5] }, "x-00003-of-00007.bin", "of 00007"},
		"twice":        {func(f files) { f["x-001-of-00002.bin"] = bin[:5] }, "", "twice"},
	} {
		f := megatronPieces("x", bin, 5, 2)
		f["x.idx"] = idx.bytes()
		c.change(f)
		v := exercise(t, f)
		p := v.Problems()
		if len(p) != 1 || (c.object != "" && p[0].Object != c.object) || !strings.Contains(p[0].Detail, c.says) {
			t.Errorf("%s: problems %v", name, p)
		}
		if len(v.Sets) != 1 || v.Sets[0].Bad() == nil {
			t.Errorf("%s: the shard is not bad", name)
		}
	}
}

func TestMegatronWholeDataBesidePieces(t *testing.T) {
	idx, bin := megatronSmall()
	f := megatronPieces("tokens", bin, 5, 2)
	f["tokens.idx"] = idx.bytes()
	v, _ := oneSet(t, f)
	if got, ok := readView(t, v, "joined/tokens.bin"); !ok || !bytes.Equal(got, bin) {
		t.Errorf("joined/tokens.bin = %x", got)
	}
	f["tokens.bin"] = bin
	v, s := oneSet(t, f)
	if len(s.Shards[0].Objects) != 2 || len(v.Views) != 6 {
		t.Errorf("%d objects, %d views: the pieces are used beside the whole", len(s.Shards[0].Objects), len(v.Views))
	}
}

// pattern is the byte of the virtual .bin at an offset.
func pattern(off int64) byte { return byte(off*7 + off>>13) }

// virtual is an origin whose bytes are worked out, and which counts how often it is read.
type virtual struct {
	reads *atomic.Int64
	fill  func(p []byte, off int64)
}

func (v virtual) ReadAt(_ context.Context, o *Object, p []byte, off int64) (int, error) {
	v.reads.Add(1)
	n := int(min(int64(len(p)), o.Size-off))
	v.fill(p[:n], off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// TestMegatronPiecesOfPythiaSize has 410 GB in 82 pieces and an index of 2 GB, of which next to nothing may be read.
func TestMegatronPiecesOfPythiaSize(t *testing.T) {
	const sequences, tokens, size = 100_000_000, 2049, int64(5_000_000_000)
	var index Body
	header, _ := MegatronHeader(U16, sequences, sequences)
	index.Add(Inline(header), 0, megatronHeaderSize)
	for _, part := range []struct {
		count int64
		width int
		value int64
	}{{sequences, 4, 0}, {sequences, 8, 2 * tokens}, {sequences + 1, 8, 1}} {
		o := computed(part.count, part.width, func(_ context.Context, dst []byte, first int64) error {
			for i := range len(dst) / part.width {
				if part.width == 4 {
					binary.LittleEndian.PutUint32(dst[4*i:], tokens)
				} else {
					binary.LittleEndian.PutUint64(dst[8*i:], uint64((first+int64(i))*part.value))
				}
			}
			return nil
		})
		index.Add(o, 0, o.Size)
	}
	var reads atomic.Int64
	objects := []*Object{{Name: "doc.idx", Size: index.Size(), Origin: virtual{&reads, func(p []byte, off int64) {
		if _, err := index.ReadAt(t.Context(), p, off); err != nil {
			t.Error(err)
		}
	}}}}
	total := int64(2 * sequences * tokens)
	for i := int64(0); i*size < total; i++ {
		objects = append(objects, &Object{
			Name: fmt.Sprintf("doc-%05d-of-%05d.bin", i, total/size), Size: min(size, total-i*size),
			Origin: virtual{&reads, func(p []byte, off int64) {
				for k := range p {
					p[k] = pattern(i*size + off + int64(k))
				}
			}},
		})
	}
	start := time.Now()
	v, err := Index(t.Context(), objects, Options{})
	if err != nil || len(v.Problems()) > 0 {
		t.Fatal(err, v.Problems())
	}
	took := time.Since(start)
	s := v.Sets[0]
	if err := s.Resolve(t.Context()); err != nil || s.Bad() != nil || s.Tokens() != sequences*tokens {
		t.Fatalf("%v, %v, %d tokens", err, s.Bad(), s.Tokens())
	}
	if n := reads.Load(); n > int64(len(objects))+10 {
		t.Errorf("%d reads of %d objects", n, len(objects))
	}
	t.Logf("%d pieces indexed in %v", len(objects)-1, took)
	for _, view := range v.Views {
		if view.Path != "doc.bin" && view.Path != "megatron.bin" {
			continue
		}
		file, err := view.File(t.Context())
		if err != nil || file.Size() != total {
			t.Fatalf("%s: %v", view.Path, err)
		}
		p := make([]byte, 64)
		for border := size; border < total; border += size {
			if _, err := file.Body.ReadAt(t.Context(), p, border-31); err != nil {
				t.Fatal(err)
			}
			for k, got := range p {
				if want := pattern(border - 31 + int64(k)); got != want {
					t.Fatalf("%s at %d: %#x, want %#x", view.Path, border-31+int64(k), got, want)
				}
			}
		}
	}
}

func TestMegatronPiecesTruncation(t *testing.T) {
	idx, bin := megatronSmall()
	f := megatronPieces("x", bin, 5, 2)
	f["x.idx"] = idx.bytes()
	for _, name := range slices.Sorted(maps.Keys(f)) {
		sweep(t, f, name)
	}
}
