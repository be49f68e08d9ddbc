package layout

import (
	"fmt"
	"path"
	"runtime"
	"slices"
	"testing"
)

// TestViewsBesideADirectoryOfTheirName has sets in directories that are called like views of the set above. No view lies in or below another.
func TestViewsBesideADirectoryOfTheirName(t *testing.T) {
	array := func(columns int64) []byte { return append(NPYHeader(U16, 2, columns), make([]byte, 4*columns)...) }
	for what, c := range map[string]struct {
		files files
		want  []string // the directories of the sets
	}{
		"none":          {files{"coords.npy": array(2), "tokens/a.npy": array(2)}, []string{"", "tokens"}},
		"in it":         {files{"coords.npy": array(2), "fields/a.npy": array(2)}, []string{"npy", "fields"}},
		"below it":      {files{"coords.npy": array(2), "fields/x/y/a.npy": array(2)}, []string{"npy", "fields/x/y"}},
		"not at top":    {files{"d/coords.npy": array(2), "d/fields/a.npy": array(2)}, []string{"d/npy", "d/fields"}},
		"a file's":      {files{"coords.npy": array(2), "tokens.npy/a.npy": array(2)}, []string{"npy", "tokens.npy"}},
		"two sets":      {files{"a.npy": array(2), "b.npy": array(3), "fields/a.npy": array(2)}, []string{"npy", "npy-2", "fields"}},
		"format's name": {files{"a.npy": array(2), "fields/a.npy": array(2), "npy/fields/a.npy": array(2)}, []string{"npy-2", "fields", "npy/fields"}},
	} {
		v := exercise(t, c.files)
		var dirs []string
		for _, s := range v.Sets {
			dirs = append(dirs, s.ViewDir())
		}
		if !slices.Equal(dirs, c.want) || len(v.Problems()) > 0 {
			t.Errorf("%s: views in %q, want %q; problems %v", what, dirs, c.want, v.Problems())
		}
		paths := map[string]bool{}
		for _, view := range v.Views {
			if paths[view.Path] {
				t.Errorf("%s: two views are called %s", what, view.Path)
			}
			paths[view.Path] = true
		}
		for _, view := range v.Views {
			for dir := path.Dir(view.Path); dir != "."; dir = path.Dir(dir) {
				if paths[dir] {
					t.Errorf("%s: the view %s lies in the view %s", what, view.Path, dir)
				}
			}
		}
	}
}

// TestManySetsOfOneDirectory finds a directory for the views of each, with work that grows like the sets: it counts allocations, of which each
// name that is tried takes one.
func TestManySetsOfOneDirectory(t *testing.T) {
	const sets, most = 5000, 300
	f := files{}
	for i := range sets {
		f[fmt.Sprintf("array-of-%dx.npy", i)] = NPYHeader(U16, 0, int64(i+1))
	}
	v := index(t, f)
	dirs := map[string]bool{}
	for _, s := range v.Sets {
		dirs[s.ViewDir()] = true
		s.viewDir = ""
	}
	if len(v.Sets) != sets || len(dirs) != sets {
		t.Errorf("%d sets in %d directories, want %d", len(v.Sets), len(dirs), sets)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	views(v)
	runtime.ReadMemStats(&after)
	if each := (after.Mallocs - before.Mallocs) / sets; each > most {
		t.Errorf("naming the views of a set took %d allocations, want at most %d", each, most)
	}
}
