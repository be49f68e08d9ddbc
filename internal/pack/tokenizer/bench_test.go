package tokenizer

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// benchText is text that every machine with Go has: code and comments.
func benchText(b testing.TB, limit int) []byte {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Skipf("the go command does not say where its source tree is: %v", err)
	}
	var text bytes.Buffer
	err = filepath.WalkDir(filepath.Join(strings.TrimSpace(string(root)), "src", "net"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || text.Len() >= limit {
			return err
		}
		data, err := os.ReadFile(path)
		text.Write(data)
		return err
	})
	if err != nil || text.Len() < limit { // a Go without sources is a Go that some distributions ship
		b.Skipf("the Go source tree is not there: %d bytes, %v", text.Len(), err)
	}
	return text.Bytes()[:limit]
}

// The library's own Encode is the baseline.
func BenchmarkAppend(b *testing.B) {
	const pieceBytes = 256 << 10 // what pack gives an Encoder at once
	text := benchText(b, 2<<20)
	for _, name := range []string{"gpt2", "cl100k_base", "o200k_base"} {
		tok, codec := newEncoder(b, name), codecOf(b, name)
		for what, encode := range map[string]func([]byte) int{
			"library": func(part []byte) int {
				ids, _, err := codec.Encode(string(part))
				if err != nil {
					b.Fatal(err)
				}
				return len(ids)
			},
			"here": func(part []byte) int {
				ids, _, err := tok.Append(nil, part, false)
				if err != nil {
					b.Fatal(err)
				}
				return len(ids)
			},
		} {
			b.Run(name+"/"+what, func(b *testing.B) {
				tokens := 0
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					tokens = 0
					for rest := text; len(rest) > 0; {
						n := min(pieceBytes, len(rest))
						tokens += encode(rest[:n])
						rest = rest[n:]
					}
				}
				b.ReportMetric(float64(len(text))/float64(tokens), "bytes/token")
			})
		}
	}
}
