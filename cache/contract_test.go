package cache_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/origintest"
)

func TestDirKeepsTheContract(t *testing.T) {
	origintest.Run(t, func(t *testing.T) origintest.Fixture {
		root := t.TempDir()
		return origintest.Fixture{
			Names: []string{"with space", "ümlaut", "a%2Fb", "semi;colon", "q?x=1", "hash#1", "new\nline"},
			Open: func(t testing.TB) origintest.Subject {
				d, err := cache.OpenDir(root, 8)
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
			// As a writer that replaces: into another file, which takes the name.
			Put: func(t testing.TB, name string, data []byte) {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				temp := filepath.Join(t.TempDir(), "f")
				if err := os.WriteFile(temp, data, 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(temp, path); err != nil {
					t.Fatal(err)
				}
			},
			Remove: func(t testing.TB, name string) {
				if err := os.Remove(filepath.Join(root, name)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}
