package touched

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func sample() *Record {
	return &Record{
		Format: format, Since: time.Unix(5, 0).UTC(), Until: time.Unix(9, 0).UTC(), Complete: true,
		Files:   []File{{"a/b.bin", `"v1"`, 300 << 20}, {"c", "", 5}},
		Touches: [][3]int64{{0, 64 << 20, 64 << 20}, {1, 0, 5}, {0, 256 << 20, 44 << 20}},
	}
}

func TestRecordsAreKept(t *testing.T) {
	name := filepath.Join(t.TempDir(), "record")
	for range 2 { // the second replaces the first
		if err := sample().Save(name); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(name)
	if err != nil || !reflect.DeepEqual(got, sample()) {
		t.Errorf("%+v, %v", got, err)
	}
	if got.Bytes() != 108<<20+5 {
		t.Errorf("%d bytes", got.Bytes())
	}
	if left, _ := filepath.Glob(name + "?*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if err := sample().Save(filepath.Join(name, "below a file")); err == nil {
		t.Error("saved below a file")
	}
}

func TestWrongRecords(t *testing.T) {
	for name, text := range map[string]string{
		"empty":      ``,
		"no record":  `{}`,
		"later":      `{"hbmfs_record":2}`,
		"no file":    `{"hbmfs_record":1,"touches":[[0,0,1]]}`,
		"beyond":     `{"hbmfs_record":1,"files":[{"name":"a","size":5}],"touches":[[0,3,3]]}`,
		"overflow":   `{"hbmfs_record":1,"files":[{"name":"a","size":5}],"touches":[[0,9223372036854775807,9223372036854775807]]}`,
		"too large":  `{"hbmfs_record":1,"files":[{"name":"a","size":9223372036854775807}],"touches":[[0,0,9223372036854775807],[0,0,9223372036854775807]]}`,
		"negative":   `{"hbmfs_record":1,"files":[{"name":"a","size":5}],"touches":[[0,-1,2]]}`,
		"nothing":    `{"hbmfs_record":1,"files":[{"name":"a","size":5}],"touches":[[0,1,0]]}`,
		"short":      `{"hbmfs_record":1,"files":[{"name":"a","size":5}],"touches":[[0,1]]}`,
		"no name":    `{"hbmfs_record":1,"files":[{"size":5}]}`,
		"half of it": `{"hbmfs_record":1,"files":[{"name":"a","si`,
	} {
		if r, err := Parse(strings.NewReader(text)); err == nil {
			t.Errorf("%s is taken: %+v", name, r)
		}
	}
	name := filepath.Join(t.TempDir(), "no-record")
	if err := os.WriteFile(name, []byte("MZ"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(name); err == nil || !strings.Contains(err.Error(), "no record of hbmfs warm --record") {
		t.Error(err)
	}
}

// TestMessages cuts a record: all touches are in the messages, in order, up to what the cache has room for.
func TestMessages(t *testing.T) {
	r := sample()
	for _, c := range []struct{ rate, limit, want, beyond int64 }{{0, 1 << 40, 108<<20 + 5, 0}, {4 << 20, 1 << 40, 108<<20 + 5, 0}, {0, 70 << 20, 64<<20 + 5, 44 << 20}} {
		p := NewReplay(r, "", c.rate, func(int64) {})
		p.cut(c.limit)
		var sum int64
		for _, f := range p.frames {
			for _, m := range f.Touches.Touches {
				sum += m.Length
			}
			if len(f.AppendTo(nil)) > 64<<10-16 || c.rate > 0 && f.bytes > 1<<20 {
				t.Errorf("a message of %d bytes for %d", len(f.AppendTo(nil)), f.bytes)
			}
		}
		if sum != c.want || p.Summary().Beyond != c.beyond {
			t.Errorf("%d bytes in messages, %d beyond, of %+v", sum, p.Summary().Beyond, c)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"hbmfs_record":1,"files":[{"name":"a","version":"v","size":5}],"touches":[[0,1,2]]}`)
	f.Fuzz(func(_ *testing.T, text string) {
		r, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		p := NewReplay(r, "", 0, func(int64) {})
		p.cut(1 << 40)
		for _, t := range r.Touches {
			if of := r.Files[t[0]]; t[1]+t[2] > of.Size {
				panic("a touch beyond its file")
			}
		}
	})
}
