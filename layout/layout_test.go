package layout

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// files are the objects of a dataset in a test: name to bytes.
type files map[string][]byte

func (f files) objects() []*Object {
	var out []*Object
	for _, name := range slices.Sorted(maps.Keys(f)) {
		out = append(out, Bytes(name, f[name]))
	}
	return out
}

// golden reads a dataset of tests/data/testdata. Its objects have names relative to the dataset.
func golden(t testing.TB, dataset string) files {
	t.Helper()
	root := filepath.Join("..", "tests", "data", "testdata", dataset)
	out := files{}
	err := filepath.WalkDir(root, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		out[filepath.ToSlash(rel)], err = os.ReadFile(p)
		return err
	})
	if err != nil {
		t.Fatalf("golden dataset %s: %v", dataset, err)
	}
	return out
}

func index(t testing.TB, f files) *Volume {
	t.Helper()
	v, err := Index(t.Context(), f.objects(), Options{})
	if err != nil {
		t.Fatalf("index: %v", err)
	}
	return v
}

// oneSet indexes files that form one set without problems, resolved and checked.
func oneSet(t testing.TB, f files) (*Volume, *Set) {
	t.Helper()
	v := index(t, f)
	if len(v.Sets) != 1 {
		t.Fatalf("%d sets, want 1 (problems: %v)", len(v.Sets), v.Problems())
	}
	if err := v.Sets[0].Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if p := v.Problems(); len(p) > 0 {
		t.Fatalf("problems: %v", p)
	}
	return v, v.Sets[0]
}

// readView returns the bytes of a view, and whether it exists. It reads them twice, at once and in small pieces, and
// fails when the two differ.
func readView(t testing.TB, v *Volume, path string) ([]byte, bool) {
	t.Helper()
	for _, view := range v.Views {
		if view.Path != path || view.File == nil {
			continue
		}
		f, err := view.File(t.Context())
		var gone *AbsentError
		if errors.As(err, &gone) {
			return nil, false
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return readFile(t, f), true
	}
	t.Fatalf("no view is called %s", path)
	return nil, false
}

func readFile(t testing.TB, f *File) []byte {
	t.Helper()
	whole := make([]byte, f.Size())
	if n, err := f.Body.ReadAt(t.Context(), whole, 0); int64(n) != f.Size() {
		t.Fatalf("%s: %d of %d bytes: %v", f.Name, n, f.Size(), err)
	}
	pieces := make([]byte, 0, f.Size())
	for buf := make([]byte, 7); ; {
		n, err := f.Body.ReadAt(t.Context(), buf, int64(len(pieces)))
		pieces = append(pieces, buf[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
	}
	if !bytes.Equal(whole, pieces) {
		t.Fatalf("%s: pieces of 7 bytes differ from the whole", f.Name)
	}
	return whole
}

// exercise does everything that a user of the volume can do, for fuzz targets and truncation sweeps: nothing may
// panic, hang, or read outside an object.
func exercise(t testing.TB, f files) *Volume {
	t.Helper()
	ctx := t.Context()
	v, err := Index(ctx, f.objects(), Options{})
	if err != nil {
		t.Fatalf("index: %v", err)
	}
	for _, s := range v.Sets {
		if err := s.Check(ctx, nil); err != nil {
			t.Fatalf("check: %v", err)
		}
	}
	for _, view := range v.Views {
		if view.Entries != nil {
			entries, _ := view.Entries(ctx)
			for _, e := range entries {
				drain(ctx, e)
			}
			continue
		}
		if file, err := view.File(ctx); err == nil {
			drain(ctx, file)
		}
	}
	return v
}

func drain(ctx context.Context, f *File) {
	buf := make([]byte, 4096)
	for off := int64(0); off < min(f.Size(), 1<<20); off += int64(len(buf)) {
		if _, err := f.Body.ReadAt(ctx, buf, off); err != nil {
			return
		}
	}
}

// sweep cuts the named object to every length and exercises what is left.
func sweep(t *testing.T, f files, name string) {
	t.Helper()
	whole := f[name]
	cut := maps.Clone(f)
	for n := range whole {
		cut[name] = whole[:n]
		exercise(t, cut)
	}
}

func TestBodyExtents(t *testing.T) {
	a, b := Bytes("a", []byte("0123456789")), Bytes("b", []byte("abcdefghij"))
	var body Body
	body.Add(a, 2, 3)                   // 234
	body.Add(a, 5, 1)                   // 5, merged
	body.AddStrided(b, 1, 2, 3, 3)      // bc ef hi
	body.Add(Inline([]byte("!")), 0, 1) // !
	if body.Runs() != 3 || body.Size() != 11 {
		t.Fatalf("%d runs, %d bytes", body.Runs(), body.Size())
	}
	const want = "2345bcefhi!"
	for off := range want {
		for n := range len(want) + 2 - off {
			p := make([]byte, n)
			m, err := body.ReadAt(t.Context(), p, int64(off))
			if got := string(p[:m]); got != want[off:min(len(want), off+n)] {
				t.Errorf("ReadAt(%d, %d) = %q, %v", off, n, got, err)
			}
			if (err == io.EOF) != (off+n > len(want)) {
				t.Errorf("ReadAt(%d, %d): err %v", off, n, err)
			}
		}
	}
}

func TestBodyRefusesBytesOutsideTheObject(t *testing.T) {
	o := Bytes("o", make([]byte, 10))
	for _, c := range []struct{ off, n, stride, count int64 }{
		{-1, 1, 1, 1}, {0, 11, 11, 1}, {9, 2, 2, 1}, {0, 4, 4, 3}, {0, 4, 2, 2}, {0, 1, 1 << 62, 3}, {1, 1 << 62, 1 << 62, 4},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was accepted", c)
				}
			}()
			var b Body
			b.AddStrided(o, c.off, c.n, c.stride, c.count)
		}()
	}
}

// shrunk is an origin whose objects have lost their second half.
type shrunk struct{ inline }

func (s shrunk) ReadAt(ctx context.Context, o *Object, p []byte, off int64) (int, error) {
	half := s.inline[:len(s.inline)/2]
	return half.ReadAt(ctx, o, p, off)
}

func TestShortObjectIsAnError(t *testing.T) {
	o := &Object{Name: "o", Size: 10, Origin: shrunk{make(inline, 10)}}
	var b Body
	b.Add(o, 0, 10)
	if n, err := b.ReadAt(t.Context(), make([]byte, 10), 0); n != 5 || !errors.Is(err, ErrShort) {
		t.Errorf("ReadAt = %d, %v; want 5, ErrShort", n, err)
	}
}

func TestComparePathsKeepsDirectoriesTogether(t *testing.T) {
	got := []string{"a.b", "a/c", "a", "a/b/c", "ab", "a/b"}
	slices.SortFunc(got, ComparePaths)
	want := []string{"a", "a/b", "a/b/c", "a/c", "a.b", "ab"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSplitOf(t *testing.T) {
	for name, want := range map[string]string{
		"train.bin": "train", "fineweb_val_000001.bin": "val", "X-VALIDATION-3.npy": "validation", "training": "training",
		"trainer.bin": "", "data.bin": "", "": "", "0123": "", "a.test": "test", "constrained_dev": "dev",
	} {
		if got := splitOf(name); got != want {
			t.Errorf("splitOf(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestObjectsThatNoFormatLooksIntoAreToldBesideShards(t *testing.T) {
	f := golden(t, "nanogpt")
	f["train_2.bin"], f["notes.txt"], f["other/train_3.bin"] = f["train.bin"], []byte("text"), f["train.bin"]
	objects := f.objects()
	for _, o := range objects {
		o.Whole = o.Name == "train_2.bin" || o.Name == "notes.txt" || o.Name == "other/train_3.bin"
	}
	v, err := Index(t.Context(), objects, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p := v.Problems(); len(v.Sets) == 0 || len(p) != 1 || p[0].Object != "train_2.bin" || !strings.Contains(p[0].Detail, "no view has it") {
		t.Errorf("%d sets, problems %v", len(v.Sets), p)
	}
}
