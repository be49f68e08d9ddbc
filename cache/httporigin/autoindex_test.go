package httporigin

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// pagesOf are listings of the same directory as servers make them.
func pagesOf() map[string]string {
	return map[string]string{
		"nginx": `<html>
<head><title>Index of /pile/</title></head>
<body>
<h1>Index of /pile/</h1><hr><pre><a href="../">../</a>
<a href="a%20b/">a b/</a>                   22-Nov-2026 20:00                   -
<a href="train.bin">train.bin</a>           22-Nov-2026 20:00                4096
<a href="x%23y%3Fz.bin">x#y?z.bin</a>       22-Nov-2026 20:00                   1
</pre><hr></body></html>`,
		"nginx, JSON": `[
{ "name":"a b", "type":"directory", "mtime":"Sun, 22 Nov 2026 20:00:00 GMT" },
{ "name":"socket", "type":"other", "mtime":"Sun, 22 Nov 2026 20:00:00 GMT" },
{ "name":"train.bin", "type":"file", "mtime":"Sun, 22 Nov 2026 20:00:00 GMT", "size":4096 },
{ "name":"x#y?z.bin", "type":"file", "mtime":"Sun, 22 Nov 2026 20:00:00 GMT", "size":1 }
]`,
		"Apache": `<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN">
<html><head><title>Index of /pile</title></head><body><h1>Index of /pile</h1>
<table><tr><th><a href="?C=N;O=D">Name</a></th><th><a href="?C=S;O=A">Size</a></th></tr>
<tr><td valign="top"><img src="/icons/back.gif" alt="[PARENTDIR]"></td><td><a href="/">Parent Directory</a></td></tr>
<tr><td><img src="/icons/folder.gif" alt="[DIR]"></td><td><a href="a%20b/">a b/</a></td></tr>
<tr><td><a href="train.bin">train.bin</a></td></tr>
<tr><td><a href="train.bin">again</a></td></tr>
<tr><td><a href="x%23y%3fz.bin">x#y?z.bin</a></td></tr>
</table></body></html>`,
		"Python": `<!DOCTYPE HTML><html lang="en"><head><meta charset="utf-8"><title>Directory listing for /pile/</title></head>
<body><h1>Directory listing for /pile/</h1><hr><ul>
<li><a href="a%20b/">a b/</a></li><li><a href="train.bin">train.bin</a></li><li><a href="x%23y%3Fz.bin">x#y?z.bin</a></li></ul></body></html>`,
	}
}

func TestPagesOfServers(t *testing.T) {
	at, _ := url.Parse("http://host/pile/")
	for name, text := range pagesOf() {
		got, err := entriesOf([]byte(text), at)
		if want := (entries{"a b/", "train.bin", "x#y?z.bin"}); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
}

// TestHostilePages has pages name what is no entry of their directory. A link elsewhere is no entry; a name that leads elsewhere is refused.
func TestHostilePages(t *testing.T) {
	at, _ := url.Parse("http://host/pile/")
	links := `<title>Index of /pile/</title>` + strings.Join([]string{
		`<a href="http://elsewhere/pile/x">`, `<a href="../x">`, `<a href="/x">`, `<a href="a/b">`, `<a href="..%2fx">`, `<a href="%00">`, `<a href="">`,
		`<a href="./">`, `<a href="x?y">`, `<a href="//elsewhere/pile/x">`, `<a href="%zz">`, `<a href="javascript:x">`, `<a>`, `<a href="good">`,
	}, "")
	if got, err := entriesOf([]byte(links), at); err != nil || !slices.Equal(got, entries{"good"}) {
		t.Errorf("%q, %v", got, err)
	}
	for _, text := range []string{
		`[{"name":"../x","type":"file"}]`, `[{"name":"","type":"directory"}]`, `[{"name":"a/b","type":"file"}]`, `[{"name":"\u0000","type":"file"}]`, `[1]`, `[`,
		"", "<html><title>Welcome</title><a href=x>", "<title>My Index of </title><a href=x>", "\x7fELF",
	} {
		if got, err := entriesOf([]byte(text), at); err == nil {
			t.Errorf("%.40q gives %q", text, got)
		}
	}
}

func FuzzPages(f *testing.F) {
	for _, text := range pagesOf() {
		f.Add([]byte(text))
	}
	at, _ := url.Parse("http://host/pile/")
	f.Fuzz(func(t *testing.T, text []byte) {
		names, _ := entriesOf(text, at) // an error is an answer, too
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
		fmt.Fprint(w, `<title>Index of /</title><a href="again/">again/</a><a href="also/">also/</a>`)
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
