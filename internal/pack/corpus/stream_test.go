package corpus

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/internal/pack/corpus/corpustest"
)

// read returns what a file of that name and content decompresses to.
func read(name, content string) (string, error) {
	s, err := newStream(name, strings.NewReader(content))
	if err != nil {
		return "", err
	}
	defer s.close()
	text, err := io.ReadAll(s)
	return string(text), err
}

// compressed is a text in each format. The standard library writes neither xz nor bzip2: these two are of xz 5.4 and
// bzip2 1.0, of the text in the tests below.
func compressed(t testing.TB, text string) map[string]string {
	t.Helper()
	out := map[string]string{"a.gz": corpustest.Gzip(t, text), "a.zst": corpustest.Zstd(t, text)}
	for _, name := range []string{"text.xz", "text.bz2"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(data)
	}
	return out
}

func TestEveryTruncation(t *testing.T) {
	text := strings.Repeat("some text, again and again. ", 20)
	for name, content := range compressed(t, text) {
		for n := range len(content) {
			_, err := read(name, content[:n])
			if want := fmt.Sprintf("stream is cut off at byte %d of the file", n); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %d of %d bytes: got %v", name, n, len(content), err)
			}
		}
		if got, err := read(name, content); got != text || err != nil {
			t.Errorf("%s: got %d bytes, %v", name, len(got), err)
		}
		for n := 1; n < len(content); n++ { // the second member is cut off
			if _, err := read(name, content+content[:n]); err == nil {
				t.Errorf("%s, %d bytes of a second member: no error", name, n)
			}
		}
	}
}

// A flipped bit gives an error or changes nothing: both formats have a checksum.
func TestEveryFlippedBit(t *testing.T) {
	text := strings.Repeat("some text, again and again. ", 20)
	for name, content := range compressed(t, text) {
		magic := map[string]int{"text.xz": 6, "text.bz2": 10}[name]
		for bit := 8 * max(4, magic); bit < 8*len(content); bit++ {
			flipped := []byte(content)
			flipped[bit/8] ^= 1 << (bit % 8)
			if got, err := read(name, string(flipped)); err == nil && got != text {
				t.Errorf("%s, bit %d: other text and no error", name, bit)
			}
		}
	}
}

func TestZstdWindow(t *testing.T) {
	hi := "\x11\x00\x00hi" // the last block, raw
	for _, tc := range []struct{ what, header, want string }{
		{"128 MiB", "\x00\x88", ""},
		{"2 GiB", "\x00\xa8", "needs more than 128 MiB"},
		{"256 MiB", "\x00\x90", "needs more than 128 MiB"},
		{"one segment of 1 TiB", "\xe0\x00\x00\x00\x00\x00\x01\x00\x00", "needs more than 128 MiB"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := read("a", zstdMagic+tc.header+hi)
		runtime.ReadMemStats(&after)
		if tc.want == "" && (got != "hi" || err != nil) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %q, %v", tc.what, got, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 300<<20 {
			t.Errorf("%s: %d bytes were allocated", tc.what, used)
		}
	}
}

// What is no whole zstd stream is an error; what is one comes out as DecodeAll gives it.
func FuzzZstd(f *testing.F) {
	whole := corpustest.Zstd(f, "some text, some text")
	for _, seed := range []string{whole, whole + whole, whole[:10], zstdMagic + "\x00\x88\x11\x00\x00hi"} {
		f.Add([]byte(seed))
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(1<<24))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(d.Close)
	f.Fuzz(func(t *testing.T, content []byte) {
		if !strings.HasPrefix(string(content), zstdMagic) {
			return
		}
		want, wantErr := d.DecodeAll(content, nil)
		s, err := newStream("a", bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		got, err := io.ReadAll(io.LimitReader(s, 1<<25))
		if wantErr == nil && (err != nil || !bytes.Equal(got, want)) {
			t.Errorf("got %d bytes, %v; want %d", len(got), err, len(want))
		}
	})
}
