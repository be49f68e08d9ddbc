package main

import (
	"bytes"
	"crypto/sha256"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/pack/corpus/corpustest"
)

func TestPickSources(t *testing.T) {
	tree := corpustest.Dir(t, map[string]string{
		"a/a.go": "12345", "a/deep/b.go": "67890", "big/c.go": strings.Repeat("x", 100), "cmd/d.go": "1", "e/e.go": "12", "f/f.txt": "12",
	})
	dirs, total, err := pickSources(tree, 20)
	if err != nil {
		t.Fatal(err)
	}
	for i := range dirs {
		dirs[i] = filepath.Base(dirs[i])
	}
	if got := strings.Join(dirs, " "); got != "a e" || total != 12 {
		t.Errorf("picked %q of %d bytes, want \"a e\" of 12", got, total)
	}
	if dirs, _, err := pickSources(tree, 1); err == nil {
		t.Errorf("picked %q within a limit that nothing fits", dirs)
	}
}

func TestHashFilesIsOfTheConcatenation(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"1": "abc", "2": "de"})
	got, err := hashFiles(t.Context(), filepath.Join(dir, "1"), filepath.Join(dir, "2"))
	if err != nil {
		t.Fatal(err)
	}
	if want := sha256.Sum256([]byte("abcde")); !bytes.Equal(got.sum, want[:]) || got.size != 5 {
		t.Errorf("got %x of %d bytes, want %x of 5", got.sum, got.size, want)
	}
}

func TestHashView(t *testing.T) {
	const good = "{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }"
	v1 := "\x93NUMPY\x01\x00" + string([]byte{byte(len(good)), 0}) + good
	v2 := "\x93NUMPY\x02\x00" + string([]byte{byte(len(good)), 0, 0, 0}) + good
	dir := corpustest.Dir(t, map[string]string{
		"v1": v1 + "\x01\x02\x03\x04", "v2": v2 + "\x01\x02\x03\x04", "short": v1 + "\x01\x02", "not": "0123456789abcdef",
		"huge": "\x93NUMPY\x02\x00\xff\xff\xff\xff",
	})
	want := sha256.Sum256([]byte{1, 2, 3, 4})
	for _, name := range []string{"v1", "v2"} {
		got, err := hashView(t.Context(), filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got.sum, want[:]) {
			t.Errorf("%s: %x, error %v, want %x", name, got.sum, err, want)
		}
	}
	for _, name := range []string{"short", "not", "huge", "absent"} {
		if got, err := hashView(t.Context(), filepath.Join(dir, name)); err == nil {
			t.Errorf("%s: hash %x, want an error", name, got.sum)
		}
	}
}

func TestVerdictRefusesADifference(t *testing.T) {
	d := &demo{out: &bytes.Buffer{}}
	a := digest{sum: bytes.Repeat([]byte{1}, 32), size: 4}
	b := digest{sum: bytes.Repeat([]byte{2}, 32), size: 4}
	if err := d.verdict("x", a, a); err != nil {
		t.Error(err)
	}
	for _, other := range []digest{b, {a.sum, 5}} {
		if err := d.verdict("x", other, a); err == nil {
			t.Errorf("%v passed for %v", other, a)
		}
	}
}
