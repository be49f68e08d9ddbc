package checkpoint

import (
	"errors"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// written writes files into a draft and sums them. It leaves syncing to Publish.
func written(t *testing.T, dir string, sizes map[string]int) (files []File) {
	t.Helper()
	for name, size := range sizes {
		data := make([]byte, size)
		random := rand.NewChaCha8([32]byte([]byte(name + "................................")[:32]))
		_, _ = random.Read(data) // it never fails
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777))
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		must(t, err)
		_, err = f.Write(data)
		must(t, errors.Join(err, f.Close()))
		file := File{Name: name, Size: int64(size)}
		for chunk := range slices.Chunk(data, Chunk) {
			file.Sums = append(file.Sums, crc32.Checksum(chunk, castagnoli()))
		}
		files = append(files, file)
	}
	return files
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// some are the files of a small checkpoint.
var some = map[string]int{"a": 0, "b.bin": 100, "sub/deep/c": Chunk + 7}

// publish makes a checkpoint.
func publish(t *testing.T, path string) {
	t.Helper()
	d, err := Begin(t.Context(), path, Part{0, 1})
	must(t, err)
	must(t, d.Publish(t.Context(), written(t, d.Dir(), some)))
	must(t, d.Drop())
}

// sound checks that exactly these are complete in a directory, and that their bytes are right.
func sound(t *testing.T, dir string, names ...string) {
	t.Helper()
	all, err := List(dir)
	must(t, err)
	var complete []string
	for _, e := range all {
		if e.State != Complete {
			continue
		}
		complete = append(complete, e.Name)
		report, err := Verify(t.Context(), e.Path, VerifyOptions{})
		must(t, err)
		if report.Damaged != 0 || report.Bytes != e.Size || report.Files != e.Files {
			t.Errorf("%s: %+v", e.Path, report)
		}
	}
	if !slices.Equal(complete, names) {
		t.Errorf("%q are complete, want %q", complete, names)
	}
}

func TestPublishes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	publish(t, filepath.Join(dir, "step_9"))
	publish(t, filepath.Join(dir, "step_10"))
	sound(t, dir, "step_9", "step_10")
	must(t, Remove(t.Context(), filepath.Join(dir, "step_9")))
	sound(t, dir, "step_10")
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 1 {
		t.Errorf("%v, %v: something is left", names, err)
	}
}

// TestRemovesOnlyThisOne has a checkpoint removed and published anew before a process that had the first one open removes it.
func TestRemovesOnlyThisOne(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "step_9")
	publish(t, path)
	c, err := Open(path)
	must(t, err)
	must(t, Remove(t.Context(), path))
	publish(t, path)
	if err := c.Remove(t.Context()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "another checkpoint") {
		t.Errorf("the error is %v", err)
	}
	must(t, c.Close())
	sound(t, dir, "step_9")
	c, err = Open(path)
	must(t, err)
	must(t, errors.Join(c.Remove(t.Context()), c.Close()))
	sound(t, dir)
}
