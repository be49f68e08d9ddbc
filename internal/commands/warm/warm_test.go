package warm

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReadOfAnOddLength reads a file of a disk, as a small segment is once it is published: O_DIRECT takes whole blocks only.
func TestReadOfAnOddLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(path, make([]byte, 1001), 0o600); err != nil {
		t.Fatal(err)
	}
	w := New([]string{path}, 1001, 0, func(int64) {})
	if err := w.read(t.Context(), unit{path: path, n: 1001}); err != nil || w.done.Fetched != 1001 {
		t.Errorf("%d bytes of 1001, %v", w.done.Fetched, err)
	}
}
