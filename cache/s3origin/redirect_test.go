package s3origin

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// TestRedirectsAreNotFollowed has a store send its clients elsewhere: a signed request is for the store that it names.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var asked atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(elsewhere.Close)
	for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, code)
		}))
		o := openAt(t, store.URL, nil)
		if _, err := o.List(t.Context()); err == nil {
			t.Errorf("%d: the listing succeeds", code)
		}
		store.Close()
	}
	if asked.Load() != 0 {
		t.Errorf("the other store was asked %d times", asked.Load())
	}
}

// TestGuardedStore is refused at once.
func TestGuardedStore(t *testing.T) {
	store := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(store.Close)
	guard, err := fetch.NewGuard(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openAt(t, store.URL, guard).List(t.Context()); !errors.Is(err, fs.ErrPermission) || errors.Is(err, fetch.ErrUnreachable) {
		t.Errorf("%v, want a refusal without another attempt", err)
	}
}

func openAt(t *testing.T, endpoint string, guard *fetch.Guard) *Bucket {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "AKID")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	s, err := Parse("s3://bucket?region=us-east-1&endpoint=" + endpoint)
	if err != nil {
		t.Fatal(err)
	}
	patience := 2 * time.Minute
	if guard == nil {
		patience = 200 * time.Millisecond
	}
	o, err := Open(s, fetch.Options{Patience: patience, Guard: guard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}
