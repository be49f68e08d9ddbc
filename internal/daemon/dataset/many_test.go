package dataset

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/internal/text/usage"
)

func TestMany(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../../tests/data/testdata/npy")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "linked")); err != nil {
		t.Fatal(err)
	}
	m := &Many{Note: func(string) {}}
	defer func() { _ = m.Close() }() // nothing was written
	v, err := m.Index(t.Context(), dir)
	if err != nil || len(v.Sets) != 1 {
		t.Fatalf("%v: %+v", err, v)
	}
	if got := m.Problems(); len(got) != 1 || got[0].Object != "linked" {
		t.Errorf("the problems are %v, want the link out of the directory", got)
	}
	objects, err := m.Objects(t.Context(), filepath.Join(dir, v.Objects[0].Name))
	if err != nil || len(objects) != 1 {
		t.Errorf("one file: %d objects, %v", len(objects), err)
	}
	if _, err := m.Objects(t.Context(), "ftp://host/file"); !errors.As(err, &usage.Error{}) {
		t.Errorf("an address of another kind: %v, want a mistake", err)
	}
	if _, err := m.Index(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}
