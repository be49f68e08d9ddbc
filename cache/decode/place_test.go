package decode

import (
	"bytes"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSwappedSegments gives the decoded segments of two shards each other's place. Their names have 700 bytes in common.
func TestSwappedSegments(t *testing.T) {
	below := strings.Repeat(strings.Repeat("n", 99)+"/", 7)
	a, b := plain(300_000), plain(300_001)[:300_000]
	za, zb := zstdOf(t, a), zstdOf(t, b)
	f := &files{data: map[string][]byte{
		below + "a.zstd": za, below + "b.zstd": zb,
		below + "index.json": index(t, entry("a", "a.zstd", a, za, "zstd", nil), entry("b", "b.zstd", b, zb, "zstd", nil)),
	}}
	dir := t.TempDir()
	read := func() {
		w := wrap(t, f, false, 0)
		w.keep(t, dir, 1<<20)
		for name, want := range map[string][]byte{"a": a, "b": b} {
			if got, err := w.read(t, below+name); err != nil || !bytes.Equal(got, want) {
				t.Errorf("shard %s has %d bytes of its own or of the other's, want %d: %v", name, len(got), len(want), err)
			}
		}
		for end := time.Now().Add(time.Minute); w.stats().Filling > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the shards are not published within a minute")
			}
		}
	}
	read()
	var shards []string
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() == int64(len(a)) {
			shards = append(shards, path)
		}
		return err
	}); err != nil || len(shards) != 2 {
		t.Fatalf("%q are the segments of two shards, %v", shards, err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, shards[0], unix.AT_FDCWD, shards[1], unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	read()
}
