package layout

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A made file is of one type and distribution. HBMFS_TEST_LONG=1 makes 200 of each, as many as the table in docs/guide/formats.md counts.
const (
	madeFiles, madeFilesLong = 20, 200
	madeBytes                = 8192
)

// integers draws values for a type of so many bits: ids of text, any value, or a few.
func integers(r *rand.Rand, distribution string, bits int) func() uint64 {
	vocabulary := []float64{50257, 100277, 128256}[r.IntN(3)]
	if bits == 16 {
		vocabulary = []float64{8000, 32000, 50257, 65000}[r.IntN(4)]
	}
	if bits == 8 {
		vocabulary = 256
	}
	switch distribution {
	case "Zipf":
		return func() uint64 { return uint64(math.Pow(vocabulary, r.Float64())) - 1 }
	case "uniform ids":
		return func() uint64 { return uint64(r.Float64() * min(vocabulary, 32000)) }
	case "few values":
		var few []uint64
		for range 2 + r.IntN(9) {
			few = append(few, uint64(r.Float64()*vocabulary))
		}
		if r.IntN(2) == 0 { // or the first ones
			for i := range few {
				few[i] = uint64(i)
			}
		}
		return func() uint64 { return few[r.IntN(len(few))] }
	}
	return func() uint64 { return r.Uint64() >> (64 - bits) }
}

// madeFile makes a file of dtype. Without zeros no element is zero; with them one in ten more is.
func madeFile(r *rand.Rand, dtype DType, distribution string, zeros bool) []byte {
	next := integers(r, distribution, dtype.Size()*8)
	switch dtype {
	case I32, I64:
		ids := next
		next = func() uint64 { return ids() & (1<<(dtype.Size()*8-1) - 1) }
	case F32:
		ids, scale := next, 0.02
		next = func() uint64 {
			x := r.NormFloat64() * scale
			if distribution != "uniform" {
				x = float64(ids()%1000+1) / 1000
			}
			return uint64(math.Float32bits(float32(x)))
		}
	}
	b := make([]byte, 0, madeBytes)
	for len(b) < madeBytes {
		v := next()
		switch {
		case zeros && r.IntN(10) == 0:
			v = 0
		case !zeros && v&(1<<(dtype.Size()*8)-1) == 0 && dtype != I64, !zeros && v == 0:
			v = 1
		}
		var p [8]byte
		binary.LittleEndian.PutUint64(p[:], v)
		b = append(b, p[:dtype.Size()]...)
	}
	return b
}

// TestTokenGuessesAreRight measures how often a guess is right, absent and wrong, on files of known types. A view in a wrong type is
// worse than none.
func TestTokenGuessesAreRight(t *testing.T) {
	files := madeFiles
	if os.Getenv("HBMFS_TEST_LONG") != "" {
		files = madeFilesLong
	}
	code := codes()
	var table strings.Builder
	fmt.Fprintf(&table, "%-8s %-12s %-6s %6s %6s %6s %6s\n", "type", "values", "zeros", "files", "view", "named", "wrong")
	for _, dtype := range []DType{U8, U16, U32, I32, I64, F32} {
		for _, distribution := range []string{"uniform", "uniform ids", "Zipf", "few values"} {
			for _, zeros := range []bool{false, true} {
				r := rand.New(rand.NewPCG(1, uint64(dtype)<<8|uint64(len(distribution))<<1|uint64(count(zeros))))
				var view, named, wrong int
				for range files {
					b := madeFile(r, dtype, distribution, zeros)
					g := guessTokens(b[:headSize], code)
					right := dtype
					if dtype == I32 { // whose ids are the same bytes
						right = U32
					}
					switch {
					case g.dtype == right:
						view++
					case g.dtype != DTypeUnknown:
						wrong++
						t.Errorf("a file of %s (%s, zeros %v) is shown as %s", dtype, distribution, zeros, g.dtype)
					case g.other == "" && strings.Contains(g.advice(), "--dtype "):
						named++
					}
				}
				fmt.Fprintf(&table, "%-8s %-12s %-6v %6d %6d %6d %6d\n", dtype.Long(), distribution, zeros, files, view, named, wrong)
				if text := distribution == "Zipf" && (dtype == U16 || dtype == U32 || dtype == I32); text && view*20 < files*19 {
					t.Errorf("of %d files of %s with ids as text has them, %d have views", files, dtype, view)
				}
			}
		}
	}
	t.Logf("\n%s", table.String())
}

// TestTokenGuessesOfGoldenFiles looks at each golden file as if no other format knew it. A guess must be the type of the tokens that are
// in the file, and there must be none for other files.
func TestTokenGuessesOfGoldenFiles(t *testing.T) {
	root := filepath.Join("..", "tests", "data", "testdata")
	dirs, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	code := codes()
	var tokens, right, others, wrong int
	for _, dir := range dirs {
		if !dir.IsDir() {
			continue
		}
		v := index(t, golden(t, dir.Name()))
		types := map[*Object]DType{}
		for _, s := range v.Sets {
			if err := s.Resolve(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, h := range s.Shards {
				for r := range h.Data.RunsWithin(0, h.Data.Size()) {
					types[r.Object] = s.DType
				}
			}
		}
		for _, o := range v.Objects {
			head, err := readFull(t.Context(), o, 0, min(o.Size, headSize))
			if err != nil {
				t.Fatal(err)
			}
			g, known := guessTokens(head, code), types[o]
			if known != DTypeUnknown {
				tokens++
			} else {
				others++
			}
			switch {
			case g.dtype == DTypeUnknown:
			case g.dtype == known, g.dtype == U32 && known == I32:
				right++
			default:
				wrong++
				t.Errorf("%s/%s is %s, and would be shown as %s", dir.Name(), o.Name, known, g.dtype)
			}
		}
	}
	t.Logf("%d files of tokens, %d guessed right; %d others; %d wrong", tokens, right, others, wrong)
	if right == 0 {
		t.Error("no file was guessed right")
	}
}
