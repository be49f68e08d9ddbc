package httporigin

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// nginxPage is a listing as nginx makes it.
const nginxPage = `[
{ "name":"a b", "type":"directory", "mtime":"Sun, 22 Nov 2026 20:00:00 GMT" },
{ "name":"socket", "type":"other", "mtime":"Sun, 22 Nov 2026 20:00:00 GMT" },
{ "name":"train.bin", "type":"file", "mtime":"Sun, 22 Nov 2026 20:00:00 GMT", "size":4096 },
{ "name":"x#y?z.bin", "type":"file", "mtime":"Sun, 22 Nov 2026 20:00:00 GMT", "size":1 }
]`

func addAll(string) error { return nil }

func TestPagesOfServers(t *testing.T) {
	got, err := entriesOf([]byte(nginxPage), addAll)
	if want := (entries{"a b/", "train.bin", "x#y?z.bin"}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// TestHostilePages has pages name paths that are not entries of their directory.
func TestHostilePages(t *testing.T) {
	for _, text := range []string{
		`[{"name":"../x","type":"file"}]`, `[{"name":"","type":"directory"}]`, `[{"name":"a/b","type":"file"}]`, `[{"name":"\u0000","type":"file"}]`, `[1]`, `[`, "null", "{}", `[{}`, `[{},]`, `[{}] x`, `[{}]]`, `[{}}`,
		"", `<title>Index of /pile/</title><a href="x">x</a>`, "\x7fELF",
	} {
		if got, err := entriesOf([]byte(text), addAll); err == nil {
			t.Errorf("%.40q gives %q", text, got)
		}
	}
}

// TestPagesOfNothing has a page of very many members that are no entries. They count as much as others.
func TestPagesOfNothing(t *testing.T) {
	page, told, full := []byte("["+strings.Repeat("{},", 4_000_000)+"{}]"), 0, errors.New("full")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := entriesOf(page, func(string) error {
		if told++; told == 1000 {
			return full
		}
		return nil
	})
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, full) || told != 1000 || took > 1<<20 {
		t.Errorf("%v after %d members and %d bytes of memory", err, told, took)
	}
}

func FuzzPages(f *testing.F) {
	f.Add([]byte(nginxPage))
	f.Fuzz(func(t *testing.T, text []byte) {
		names, _ := entriesOf(text, addAll) // an error is an answer, too
		for _, name := range names {
			if !isEntry(name) {
				t.Errorf("%q is an entry", name)
			}
		}
	})
}

// TestDirectoriesInCircles has a server whose every directory has one more.
func TestDirectoriesInCircles(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/") {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, `[{"name":"again","type":"directory"},{"name":"also","type":"directory"}]`)
	}))
	defer s.Close()
	o, err := Open(s.URL+"/", fetch.Options{Patience: 10 * time.Second, Listing: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close() }() // the server ends
	if _, err := o.List(t.Context()); err == nil || errors.Is(err, t.Context().Err()) {
		t.Errorf("%v, want that they are too deep or too many", err)
	}
}
