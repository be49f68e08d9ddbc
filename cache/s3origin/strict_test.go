package s3origin

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/layout"
)

// TestEndlessCredentials has what gives out credentials never end. The listing ends, and says why.
func TestEndlessCredentials(t *testing.T) {
	var sent atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for text := `{"Token": "`; ; text = strings.Repeat("t", 64<<10) {
			n, err := w.Write([]byte(text))
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "", "AWS_WEB_IDENTITY_TOKEN_FILE": "", "AWS_REGION": "us-east-1",
		"HOME": t.TempDir(), "AWS_SHARED_CREDENTIALS_FILE": "", "AWS_CONFIG_FILE": "",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.URL + "/keys", "NO_PROXY": "*",
	} {
		t.Setenv(name, value)
	}
	s, err := Parse("s3://bucket?endpoint=" + server.URL)
	if err != nil {
		t.Fatal(err)
	}
	o, err := Open(s, fetch.Options{Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close() }() // only idle connections
	if _, err := o.List(t.Context()); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "more bytes") {
		t.Errorf("%v, want that there are too many bytes", err)
	}
	if n := sent.Load(); n > 64<<20 {
		t.Errorf("%d bytes were taken", n)
	}
}

// TestAnswersThatAreNone are errors and never a crash: an object by a status that has none, and another version.
func TestAnswersThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		tag    string
		want   error
	}{
		"accepted, with a document": {http.StatusAccepted, "<Later></Later>", `"v1"`, fetch.ErrLie},
		"nothing":                   {http.StatusNoContent, "", `"v1"`, fetch.ErrLie},
		"the whole for a part":      {http.StatusOK, "data!", `"v1"`, fs.ErrInvalid},
		"another version":           {http.StatusPartialContent, "data", `"v2"`, cache.ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				h := w.Header()
				h.Set("ETag", c.tag)
				h.Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
				if c.status == http.StatusPartialContent {
					h.Set("Content-Range", "bytes 0-3/5")
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body)) // they may have hung up
			}))
			defer server.Close()
			s, err := Parse("s3://bucket?region=us-east-1&anonymous=true&endpoint=" + server.URL)
			if err != nil {
				t.Fatal(err)
			}
			o, err := Open(s, fetch.Options{Patience: 300 * time.Millisecond, Stall: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = o.Close() }() // only idle connections
			obj := &layout.Object{Name: "shard", Size: 5, Version: "v1", Origin: o}
			if n, err := o.ReadAt(t.Context(), obj, make([]byte, 4), 0); n > 0 || !errors.Is(err, c.want) {
				t.Errorf("%d bytes, %v; want %v", n, err, c.want)
			}
		})
	}
}
