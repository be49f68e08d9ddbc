package checkpoint

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// sealed gives a manifest its end, whatever it says.
func sealed(text string) []byte {
	text = strings.TrimSuffix(text, "}")
	return fmt.Appendf([]byte(text), seal, crc32.Checksum([]byte(text), castagnoli()))
}

func example() *Manifest {
	return &Manifest{Name: "step_1", Part: Part{1, 3}, Created: time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC), Files: []File{
		{Name: "empty", Sums: []uint32{}}, {Name: "sub/one", Size: Chunk, Sums: []uint32{7}}, {Name: "sub/ümlaut \"{", Size: Chunk + 1, Sums: []uint32{1, 0xffffffff}},
	}}
}

func TestManifestsComeBack(t *testing.T) {
	text, err := example().marshal()
	must(t, err)
	m, err := parse(text)
	if err != nil || !reflect.DeepEqual(m, example()) {
		t.Errorf("%+v, %v", m, err)
	}
	if !strings.HasPrefix(string(text), `{"hbmfs_checkpoint":1,"name":"step_1","part":1,"parts":3,"created":"2026-11-22T01:02:03Z","files":[{"name":"empty","size":0,"chunk":4194304,"crc32c":""}`) {
		t.Errorf("the text is %s", text)
	}
}

// TestEmptyDirectories: a manifest has those alone that nothing else tells of.
func TestEmptyDirectories(t *testing.T) {
	files := []File{{Name: "a/b/file", Sums: []uint32{}}}
	if got := EmptyDirs([]string{"z", "a", "a/b", "a/c", "a/c/d", "z"}, files); !slices.Equal(got, []string{"a/c/d", "z"}) {
		t.Errorf("of the directories %q are empty", got)
	}
	for _, c := range []struct {
		dirs []string
		ok   bool
	}{
		{[]string{"a/c", "z"}, true}, {[]string{"a/b"}, false}, {[]string{"a"}, false}, {[]string{"z", "z"}, false}, {[]string{"z", "z/y"}, false}, {[]string{"a/b/file"}, false},
		{[]string{"a/b/file/x"}, false}, {[]string{"../z"}, false}, {[]string{"z/"}, false}, {[]string{""}, false}, {[]string{ManifestName}, false}, {[]string{"z\n"}, false},
		{[]string{strings.Repeat("z/", mostDepth) + "z"}, false},
	} {
		m := &Manifest{Name: "step_1", Part: Part{0, 1}, Files: files, Dirs: c.dirs}
		text, err := m.marshal()
		if (err == nil) != c.ok {
			t.Errorf("%q: %v", c.dirs, err)
		}
		if err != nil {
			continue
		}
		if back, err := parse(text); err != nil || !slices.Equal(back.Dirs, c.dirs) {
			t.Errorf("%q comes back as %q, %v", c.dirs, back.Dirs, err)
		}
	}
}

// Each text that is shorter, and each that has a bit changed, is refused.
func TestManifestsThatAreDamaged(t *testing.T) {
	text, err := example().marshal()
	must(t, err)
	for n := range text {
		if m, err := parse(text[:n:n]); err == nil {
			t.Errorf("the first %d bytes are taken for %+v", n, m)
		}
		for bit := range 8 {
			flipped := bytes.Clone(text)
			flipped[n] ^= 1 << bit
			if m, err := parse(flipped); err == nil {
				t.Errorf("with bit %d of byte %d changed it is taken for %+v", bit, n, m)
			}
		}
	}
	if m, err := parse(append(text, ' ')); err == nil {
		t.Errorf("with more behind it, it is taken for %+v", m)
	}
}

func TestManifestsThatLie(t *testing.T) {
	file := func(name string, size int64, sums int) string {
		return fmt.Sprintf(`{"name":%q,"size":%d,"chunk":%d,"crc32c":"%s"}`, name, size, Chunk, strings.Repeat("AAAAAAAA", sums/6)+map[int]string{0: "", 1: "AAAAAA==", 2: "AAAAAAAAAAA="}[sums%6])
	}
	whole := func(files ...string) string {
		return `{"hbmfs_checkpoint":1,"name":"n","part":0,"parts":1,"created":"2026-11-22T01:02:03Z","files":[` + strings.Join(files, ",") + `]}`
	}
	if _, err := parse(sealed(whole(file("a", 1, 1), file("b/c", Chunk+1, 2)))); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 256)
	for _, text := range []string{
		"", "{}", "[]", "null", `{"hbmfs_checkpoint":1}`,
		strings.Replace(whole(), `":1,`, `":2,`, 1), strings.Replace(whole(), `"part":0`, `"part":1`, 1), strings.Replace(whole(), `"part":0`, `"part":-1`, 1),
		strings.Replace(whole(), `"parts":1`, `"parts":1e9`, 1), strings.Replace(whole(), `"n"`, `".n"`, 1), strings.Replace(whole(), `"n"`, `"n/m"`, 1),
		strings.Replace(whole(), `"n"`, `""`, 1), strings.Replace(whole(), `"part"`, `"more":1,"part"`, 1), strings.Replace(whole(), "[]", "{}", 1), whole() + whole(),
		whole(file("", 0, 0)), whole(file(".", 0, 0)), whole(file("..", 0, 0)), whole(file("../a", 0, 0)), whole(file("a/../../b", 0, 0)), whole(file("/a", 0, 0)),
		whole(file("a//b", 0, 0)), whole(file("a/", 0, 0)), whole(file("./a", 0, 0)), whole(file("a/./b", 0, 0)), whole(file("a\x00b", 0, 0)), whole(file("a\nb", 0, 0)),
		whole(file(ManifestName, 0, 0)), whole(file(ManifestName+"/a", 0, 0)), whole(file(long, 0, 0)), whole(file(strings.Repeat("a/", 2050)+"a", 0, 0)),
		whole(file("a", 0, 0), file("a", 0, 0)), whole(file("a", 0, 0), file("a/b", 0, 0)), whole(file("a/b/c", 0, 0), file("a", 0, 0)),
		whole(file("a", -1, 0)), whole(file("a", 0, 1)), whole(file("a", 1, 0)), whole(file("a", Chunk, 2)), whole(file("a", 1<<62, 1)),
		whole(strings.Replace(file("a", 1, 1), "4194304", "4194303", 1)), whole(strings.Replace(file("a", 1, 1), "AAAAAA==", "AAAA", 1)), whole(strings.Replace(file("a", 1, 1), "AA==", "A*==", 1)),
		whole(strings.Replace(file("a", 0, 0), `"chunk"`, `"other"`, 1)), whole("null"), whole("0,0,0"),
	} {
		if m, err := parse(sealed(text)); err == nil {
			t.Errorf("%.200s is taken for %+v", text, m)
		}
	}
}

// A small text makes no large list.
func TestManifestsThatGrow(t *testing.T) {
	for _, one := range []string{"{},", "0,", "null,"} {
		text := sealed(`{"hbmfs_checkpoint":1,"name":"n","part":0,"parts":1,"files":[` + strings.Repeat(one, mostFiles) + `{}]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := parse(text); err == nil {
			t.Error("it is taken for a manifest")
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<30 {
			t.Errorf("a list of %q costs %d bytes", one, got)
		}
	}
	large := &Manifest{Name: "n", Part: Part{0, 1}, Files: make([]File, mostFiles+1)}
	if _, err := large.marshal(); err == nil {
		t.Error("too many files are written")
	}
}

// FuzzManifest has an oracle: whatever is taken for a manifest keeps all rules, and comes back from its own text.
func FuzzManifest(f *testing.F) {
	text, err := example().marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text[:len(text)-sealSize])
	f.Add([]byte(`{"hbmfs_checkpoint":1,"name":"n","part":0,"parts":1,"created":"2026-11-22T01:02:03Z","files":[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _ = parse(text) // it must not fail otherwise than by an error
		m, err := parse(sealed(string(text)))
		if err != nil {
			return
		}
		if err := m.check(); err != nil {
			t.Fatalf("%v, but it was taken", err)
		}
		for _, file := range m.Files {
			for _, part := range strings.Split(file.Name, "/") {
				if part == "" || part == "." || part == ".." || strings.ContainsRune(part, 0) {
					t.Fatalf("file %q leaves the directory", file.Name)
				}
			}
			if int64(len(file.Sums)) != (file.Size+Chunk-1)/Chunk {
				t.Fatalf("%d sums of %d bytes", len(file.Sums), file.Size)
			}
		}
		again, err := m.marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := parse(again)
		if err != nil || !back.Created.Equal(m.Created) {
			t.Fatalf("%v, %v is not %v", err, back, m)
		}
		back.Created = m.Created
		if !reflect.DeepEqual(m, back) {
			t.Fatalf("%+v came back as %+v", m, back)
		}
	})
}
