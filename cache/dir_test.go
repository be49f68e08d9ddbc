package cache

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, path string) (*Dir, *Listing) {
	t.Helper()
	d, err := OpenDir(path, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d, l
}

func names(l *Listing) []string {
	var out []string
	for _, o := range l.Objects {
		out = append(out, o.Name)
	}
	slices.Sort(out)
	return out
}

func TestListFollowsLinksInsideTheRootOnly(t *testing.T) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), "secret")
	root := t.TempDir()
	write(t, filepath.Join(root, "a", "b", "file"), "12345")
	for link, target := range map[string]string{
		"inside": "a/b/file", "dir": "a", "outside": filepath.Join(outside, "secret"), "up": "../secret", "dangling": "nothing",
		"loop": "loop", "absolute": filepath.Join(outside, "secret"), "a/here": filepath.Join(root, "a", "b"), "a/b/there": filepath.Join(root, "inside"),
		"almost": root + "x/a", "by": "a/here/file", "root": root, "beyond": root + "/../" + filepath.Base(outside) + "/secret",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	_, l := open(t, root)
	if want := []string{"a/b/file", "a/b/there", "by", "inside"}; !slices.Equal(names(l), want) {
		t.Errorf("objects %q, want %q", names(l), want)
	}
	for _, o := range l.Objects {
		p := make([]byte, 5)
		if _, err := o.ReadAt(t.Context(), p, 0); err != nil || string(p) != "12345" {
			t.Errorf("%s has %q, %v", o.Name, p, err)
		}
	}
	targets := map[string]string{}
	for _, k := range l.Links {
		targets[k.Name] = k.Target
	}
	if want := map[string]string{"dir": "a", "a/here": "../a/b", "root": "."}; !maps.Equal(targets, want) {
		t.Errorf("links %v, want %v", targets, want)
	}
	if len(l.Problems) != 7 {
		t.Errorf("%d problems, want one for each of the 7 refused links: %v", len(l.Problems), l.Problems)
	}
	if len(l.Dirs) != 3 || l.Dirs[0].Name != "" {
		t.Errorf("dirs %+v", l.Dirs)
	}
}

func TestSourceIsOneFile(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "one"), "1")
	write(t, filepath.Join(root, "two"), "2")
	_, l := open(t, filepath.Join(root, "two"))
	if want := []string{"two"}; !slices.Equal(names(l), want) {
		t.Errorf("objects %q, want %q", names(l), want)
	}
}

// TestChangedFiles changes a listed file in every way that matters, while its file is pooled and while it is not.
func TestChangedFiles(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"truncated": func(p string) error { return os.Truncate(p, 2) },
		"grown":     func(p string) error { return os.Truncate(p, 20) },
		"rewritten": func(p string) error { return os.WriteFile(p, []byte("abcdefgh"), 0o644) },
		"replaced": func(p string) error {
			if err := os.WriteFile(p+".new", []byte("ABCDEFGH"), 0o644); err != nil {
				return err
			}
			return os.Rename(p+".new", p)
		},
		"removed": os.Remove,
	} {
		for _, pooled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/pooled=%v", name, pooled), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "f")
				write(t, path, "12345678")
				_, l := open(t, path)
				o, p := l.Objects[0], make([]byte, 8)
				if pooled {
					if _, err := o.ReadAt(t.Context(), p, 0); err != nil {
						t.Fatal(err)
					}
				}
				if err := change(path); err != nil {
					t.Fatal(err)
				}
				n, err := o.ReadAt(t.Context(), p, 0)
				if keeps := pooled && (name == "replaced" || name == "removed"); keeps { // the old file is still open, whole
					if err != nil || string(p) != "12345678" {
						t.Errorf("ReadAt = %q, %v; want the listed bytes", p[:n], err)
					}
					return
				}
				if n != 0 || !errors.Is(err, ErrChanged) {
					t.Errorf("ReadAt = %d, %v; want ErrChanged", n, err)
				}
			})
		}
	}
}

func TestReadAtEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "12345678")
	_, l := open(t, path)
	p := make([]byte, 8)
	if n, err := l.Objects[0].ReadAt(t.Context(), p, 5); n != 3 || err != io.EOF {
		t.Errorf("ReadAt = %d, %v; want 3, EOF", n, err)
	}
}

// TestFilePoolIsBounded reads many files from many goroutines through a pool of two.
func TestFilePoolIsBounded(t *testing.T) {
	root := t.TempDir()
	const files = 20
	for i := range files {
		write(t, filepath.Join(root, fmt.Sprint(i)), fmt.Sprintf("content of %d", i))
	}
	d, l := open(t, root)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				o := l.Objects[(g*7+i)%files]
				p := make([]byte, o.Size)
				if _, err := o.ReadAt(t.Context(), p, 0); err != nil && err != io.EOF {
					t.Error(err)
				}
				if want := "content of " + o.Name; string(p) != want {
					t.Errorf("%s = %q", o.Name, p)
				}
			}
		})
	}
	wg.Wait()
	if n := d.files.idle.Len(); n > 2 || n != len(d.files.byObj) {
		t.Errorf("%d idle files of %d, at most 2 may stay open", n, len(d.files.byObj))
	}
}

func TestSpecialFilesAreLeftOut(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "file"), "1")
	if err := unix.Mkfifo(filepath.Join(root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, l := open(t, root)
	if len(l.Objects) != 1 || len(l.Problems) != 1 || l.Problems[0].Object != "pipe" {
		t.Errorf("objects %v, problems %v", names(l), l.Problems)
	}
}

func BenchmarkList(b *testing.B) {
	root := b.TempDir()
	const files = 100_000
	for i := range files {
		write(b, filepath.Join(root, fmt.Sprintf("shard_%06d.bin", i)), "")
	}
	d, err := OpenDir(root, 16)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		l, err := d.List(b.Context())
		if err != nil || len(l.Objects) != files {
			b.Fatal(len(l.Objects), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/files, "ns/file")
}

var _ layout.Origin = (*Dir)(nil)

// A tree of any depth takes a bounded number of descriptors to list, and what lies deeper is left out with a line.
func TestListOfADeepTree(t *testing.T) {
	source := t.TempDir()
	root, err := os.OpenRoot(source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() }) // opened for reading: nothing is lost
	deepest := strings.Repeat("d/", maxDepth)
	if err := errors.Join(root.MkdirAll(deepest+"deeper", 0o755), root.WriteFile(deepest+"file", []byte("deep"), 0o644)); err != nil {
		t.Fatal(err)
	}
	d, l := open(t, source)
	if len(l.Objects) != 1 || len(l.Dirs) != maxDepth+1 || len(l.Problems) != 1 || !strings.Contains(l.Problems[0].Detail, "deep") {
		t.Fatalf("%d objects, %d directories, problems %v", len(l.Objects), len(l.Dirs), l.Problems)
	}
	if p := make([]byte, 4); l.Objects[0].Size != 4 {
		t.Errorf("the file has %d bytes", l.Objects[0].Size)
	} else if _, err := d.ReadAt(t.Context(), l.Objects[0], p, 0); err != nil || string(p) != "deep" {
		t.Errorf("%q, %v", p, err)
	}
}
