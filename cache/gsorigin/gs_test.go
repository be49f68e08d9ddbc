package gsorigin

import (
	"bytes"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/layout"
)

func TestParse(t *testing.T) {
	noEnvironment(t)
	for text, want := range map[string]string{
		"gs://bucket": "gs://bucket/", "gs://bucket/a/b/": "gs://bucket/a/b", "gs://bucket/a%20b?anonymous": "gs://bucket/a b",
		"gs://b_u.c-k3t?user_project=p":      "gs://b_u.c-k3t/",
		"gs://bucket?endpoint=http://h:4443": "gs://bucket/?endpoint=http://h:4443", "gs://bucket?endpoint=https://h/": "gs://bucket/?endpoint=https://h",
	} {
		if s, err := Parse(text); err != nil || s.String() != want {
			t.Errorf("%s: %s, %v", text, s, err)
		}
	}
	for text, want := range map[string]string{
		"gs:///x": "want gs://BUCKET/PREFIX", "gs://u:hunter2@bucket": "credentials do not belong in a source", "gs://bucket/a#b": "write the # as %23",
		"gs://bucket?region=x": "there are anonymous, endpoint and user_project", "gs://bucket?endpoint=h": "or http://HOST:PORT", "gs://bucket?endpoint=": "has no value",
		"gs://bucket?endpoint=http://h/x": "and nothing more", "gs://bucket?anonymous=maybe": "want true or false", "gs://bucket?anonymous=1&anonymous=0": "given twice",
		"gs://bucket?a;b=c": "options cannot be read", "gs://bucket?endpoint=http://u:hunter2@h": "and nothing more", "gs://u:a/hunter2@bucket": "it cannot be read",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for host, want := range map[string]string{"h:4443": "http://h:4443", "https://h": "https://h"} {
		t.Setenv(emulator, host)
		if s, err := Parse("gs://bucket"); err != nil || s.Endpoint != want || !s.Anonymous {
			t.Errorf("%s=%s: %+v, %v", emulator, host, s, err)
		}
	}
	for _, source := range []Source{{Bucket: "ab"}, {Bucket: strings.Repeat("b", 223)}, {Bucket: "A/b"}, {Bucket: "bucket", Prefix: strings.Repeat("k", 1025)}} {
		if _, err := Open(source, fetch.Options{}); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%.50s: %v", source, err)
		}
	}
}

func TestVersions(t *testing.T) {
	for _, text := range []string{"1700000000000001", "crc32c:00ff00ff 1700000000000001", "crc32c:00ff00ff 17 gzip", "17 gzip"} {
		if v, err := parseVersion(text); err != nil || v.String() != text {
			t.Errorf("%q becomes %q, %v", text, v, err)
		}
	}
	for _, text := range []string{"", "gzip", "crc32c:00", "-1", `"etag"`, "1&alt=json"} {
		if v, err := parseVersion(text); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q becomes %q, %v", text, v, err)
		}
	}
	h := layout.VersionHash("crc32c:e3069283 17 gzip", 9)
	if _, err := h.Write([]byte("123456789")); err != nil {
		t.Fatal(err)
	}
	if err := layout.CheckHash("crc32c:e3069283 17 gzip", h); err != nil {
		t.Error(err)
	}
	if err := layout.CheckHash("crc32c:e3069284 17", h); err == nil {
		t.Error("another checksum fits")
	}
}

// TestStoredInGzip reads an object in this encoding as it is stored, and refuses one that a server encodes by itself.
func TestStoredInGzip(t *testing.T) {
	noEnvironment(t)
	s := newServer(t)
	data := origintest.Data(100_000, 1)
	s.put("stored", data, "gzip")
	s.put("plain", data, "")
	o := openAt(t, s.URL, "&anonymous=true", fetch.Options{})
	l, err := o.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range l.Objects {
		got := make([]byte, 50_000)
		if n, err := o.ReadAt(t.Context(), obj, got, 1000); err != nil || !bytes.Equal(got[:n], data[1000:51_000]) {
			t.Errorf("%s: %d bytes, %v", obj.Name, n, err)
		}
	}
	s.before = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Encoding", "gzip")
		return false
	}
	if _, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 10), 0); l.Objects[0].Name != "plain" || !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("%s, encoded on its way: %v", l.Objects[0].Name, err)
	}
}

// TestOtherBytesOfAGeneration has a server answer with another checksum than the one that it listed.
func TestOtherBytesOfAGeneration(t *testing.T) {
	noEnvironment(t)
	s := newServer(t)
	s.put("shard", origintest.Data(1000, 1), "")
	o := openAt(t, s.URL, "&anonymous=true", fetch.Options{})
	l, err := o.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.objects["shard"] = stored{origintest.Data(1000, 2), s.objects["shard"].generation, ""}
	s.mu.Unlock()
	if _, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 10), 0); !errors.Is(err, cache.ErrChanged) {
		t.Error(err)
	}
}

// TestRequesterPays names the project in each request, and asks for one where it is missing.
func TestRequesterPays(t *testing.T) {
	noEnvironment(t)
	s := newServer(t)
	s.put("shard", []byte("data"), "")
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.FormValue("userProject") == "mine" {
			return false
		}
		refuse(w, http.StatusBadRequest, "required", "Bucket is a requester pays bucket but no user project provided.")
		return true
	}
	if _, err := openAt(t, s.URL, "&anonymous=true", fetch.Options{}).List(t.Context()); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "?user_project=PROJECT") {
		t.Error(err)
	}
	o := openAt(t, s.URL, "&anonymous=true&user_project=mine", fetch.Options{})
	l, err := o.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 4), 0); err != nil {
		t.Error(err)
	}
}

// TestOneObject has the prefix name one object, after which the next daemon of a mount goes on.
func TestOneObject(t *testing.T) {
	noEnvironment(t)
	s := newServer(t)
	s.put("a/b/shard", []byte("data"), "")
	source, err := Parse("gs://bucket/a/b/shard?anonymous=true&endpoint=" + s.URL)
	if err != nil {
		t.Fatal(err)
	}
	o, err := Open(source, fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close() }() // only idle connections
	l, err := o.List(t.Context())
	if err != nil || len(l.Objects) != 1 || l.Objects[0].Name != "shard" || o.Dir() != "a/b/" {
		t.Fatalf("%+v, in %q: %v", l, o.Dir(), err)
	}
	next, err := Open(source, fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Close() }() // only idle connections
	if err := next.SetDir(o.Dir()); err != nil {
		t.Fatal(err)
	}
	if _, err := next.ReadAt(t.Context(), l.Objects[0], make([]byte, 4), 0); err != nil {
		t.Error(err)
	}
}
