package httporigin

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// TestRedirectsTellNothing has a server send its clients elsewhere, as artifact servers do: the signature in the source's
// address is not for the next one.
func TestRedirectsTellNothing(t *testing.T) {
	var asked atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if text := strings.Join([]string{r.URL.String(), r.Referer(), r.Header.Get("Authorization"), r.Header.Get("Cookie")}, " "); strings.Contains(text, "hunter2") {
			t.Errorf("the next server hears %q", text)
		}
		w.Header().Set("ETag", `"v1"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("data"))
	}))
	t.Cleanup(elsewhere.Close)
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("sig") != "hunter2" {
			t.Errorf("asked for %s without the signature", r.URL)
		}
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "hunter2"})
		http.Redirect(w, r, elsewhere.URL+"/blob", http.StatusFound)
	}))
	t.Cleanup(first.Close)
	o, err := Open(first.URL+"/shard.bin?sig=hunter2", fetch.Options{Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	l, err := o.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4)
	if n, err := o.ReadAt(t.Context(), l.Objects[0], p, 0); err != nil || string(p[:n]) != "data" {
		t.Errorf("%q, %v", p[:n], err)
	}
	if asked.Load() < 2 {
		t.Errorf("the next server was asked %d times", asked.Load())
	}
}

// TestEndlessRedirects are an error at once.
func TestEndlessRedirects(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
	}))
	t.Cleanup(s.Close)
	o, err := Open(s.URL+"/shard.bin", fetch.Options{Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	if _, err := o.List(t.Context()); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "redirects") {
		t.Errorf("%v", err)
	}
}

// TestGuardedSource is refused at once, also behind a redirect.
func TestGuardedSource(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	guard, err := fetch.NewGuard(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/shard.bin"} {
		o, err := Open(s.URL+path, fetch.Options{Patience: time.Minute, Guard: guard})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.List(t.Context()); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v", path, err)
		}
		_ = o.Close() // nothing is lost
	}
}
