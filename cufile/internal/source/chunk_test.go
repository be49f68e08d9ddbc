package source

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// randomBacking is an open file of random bytes.
func randomBacking(t testing.TB, size int) (*Backing, []byte) {
	t.Helper()
	data := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{1}).Read(data); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := OpenPlain(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f.Backing(nil), data
}

// dense lands pieces of a file one after the other.
func dense(b *Backing, spans ...[2]int64) (pieces []Piece) {
	to := int64(0)
	for _, s := range spans {
		pieces = append(pieces, Piece{b, s[0], to, s[1]})
		to += s[1]
	}
	return pieces
}

// TestChunksReadNearPiecesTogether reads pieces at all kinds of distances, and compares with the file.
func TestChunksReadNearPiecesTogether(t *testing.T) {
	b, data := randomBacking(t, 9<<20)
	random := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		var pieces []Piece
		at, to, most := random.Int64N(1<<20), int64(0), 1+random.Int64N(2*mostGap)
		for range random.IntN(2 * mostNear) {
			n := 1 + random.Int64N(most)
			switch random.IntN(20) {
			case 0:
				at = random.Int64N(int64(len(data)))
			case 1:
				to += random.Int64N(3) // they land elsewhere, or behind
			case 2, 3:
			default:
				at += random.Int64N(most)
			}
			if at+n > int64(len(data)) {
				at = 0
			}
			pieces = append(pieces, Piece{b, at, to, n})
			at, to = at+n, to+n
		}
		got := make([]byte, to)
		for _, c := range Cut(pieces, 64<<10) {
			room := make([]byte, c.N)
			if err := c.Read(room); err != nil {
				t.Fatal(err)
			}
			copy(got[c.To:], room)
		}
		for _, p := range pieces {
			if !bytes.Equal(got[p.To:p.To+p.N], data[p.Offset:p.Offset+p.N]) {
				t.Fatalf("other bytes than the file's at %d", p.Offset)
			}
		}
	}
}

func TestWhichPiecesAreNear(t *testing.T) {
	b, _ := randomBacking(t, 1<<20)
	other, _ := randomBacking(t, 1<<20)
	made, _ := randomBacking(t, 1<<20)
	made.Inline = true
	many := make([][2]int64, 2*mostNear)
	for i := range many {
		many[i] = [2]int64{int64(i) * 100, 10}
	}
	for name, c := range map[string]struct {
		pieces []Piece
		want   int
	}{
		"one":                              {dense(b, [2]int64{5, 10}), 1},
		"one behind the other":             {dense(b, [2]int64{5, 10}, [2]int64{15, 10}), 2},
		"the largest gap":                  {dense(b, [2]int64{5, 10}, [2]int64{15 + mostGap, 10}), 2},
		"too large a gap":                  {dense(b, [2]int64{5, 10}, [2]int64{16 + mostGap, 10}), 1},
		"backwards":                        {dense(b, [2]int64{50, 10}, [2]int64{5, 10}), 1},
		"overlapping":                      {dense(b, [2]int64{5, 10}, [2]int64{14, 10}), 1},
		"another file":                     {append(dense(b, [2]int64{5, 10}), dense(other, [2]int64{15, 10})...), 1},
		"of the mount's making":            {dense(made, [2]int64{5, 10}, [2]int64{16, 10}), 1},
		"of the mount's making, all of it": {dense(made, [2]int64{5, 10}, [2]int64{15, 10}), 2},
		"more than one call takes":         {dense(b, many...), mostNear},
	} {
		if got := near(c.pieces); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestNearPiecesOfAFileThatWasCut reads what is left, and says that the rest is not there.
func TestNearPiecesOfAFileThatWasCut(t *testing.T) {
	b, data := randomBacking(t, 10_000)
	if err := os.Truncate(b.Name, 5_050); err != nil {
		t.Fatal(err)
	}
	pieces := dense(b, [2]int64{0, 100}, [2]int64{2_000, 100}, [2]int64{5_000, 100}, [2]int64{7_000, 100})
	p := make([]byte, 400)
	if err := (&Chunk{Pieces: pieces, N: 400}).Read(p); !errors.Is(err, ErrShort) {
		t.Errorf("%v, want %v", err, ErrShort)
	}
	if err := (&Chunk{Pieces: pieces[:2], N: 200}).Read(p); err != nil || !bytes.Equal(p[100:200], data[2_000:2_100]) {
		t.Errorf("%v, or other bytes than the file's", err)
	}
}

// BenchmarkColumns reads some columns of a matrix from the page cache: each run by a call of its own, and near ones together.
// With -cpu it is as many threads on one file, whose reference count they share.
func BenchmarkColumns(b *testing.B) {
	file, _ := randomBacking(b, 256<<20)
	for _, c := range []struct{ run, gap int64 }{{4096, 4096}, {2048, 6144}, {1024, 7168}, {7168, 7168}, {14336, 14336}, {3584, 10752}, {4096, 0}} {
		const chunk = 2 << 20
		var spans [][2]int64
		for at := int64(1000); at+c.run <= file.Length; at += c.run + c.gap {
			spans = append(spans, [2]int64{at, c.run})
		}
		chunks := Cut(dense(file, spans...), chunk)
		for name, load := range map[string]func(c *Chunk, p []byte) error{
			"together": (*Chunk).Read,
			"each": func(c *Chunk, p []byte) error {
				for _, piece := range c.Pieces {
					if err := piece.File.ReadFull(p[piece.To-c.To:][:piece.N], piece.Offset); err != nil {
						return err
					}
				}
				return nil
			},
		} {
			b.Run(fmt.Sprintf("%d of %d/%s", c.run, c.run+c.gap, name), func(b *testing.B) {
				var total, first atomic.Int64
				b.RunParallel(func(pb *testing.PB) {
					room := make([]byte, chunk)
					for i := int(first.Add(31)); pb.Next(); i++ {
						c := &chunks[i%len(chunks)]
						if err := load(c, room); err != nil {
							b.Error(err)
							return
						}
						total.Add(c.N)
					}
				})
				b.ReportMetric(float64(total.Load())/b.Elapsed().Seconds()/1e9, "GB/s")
			})
		}
	}
}
