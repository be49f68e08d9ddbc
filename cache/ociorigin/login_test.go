package ociorigin

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestLoginsOfBrokenServers has a registry whose first answer never ends, and a server of tokens whose answers break off once.
func TestLoginsOfBrokenServers(t *testing.T) {
	alone(t)
	var breaks atomic.Bool
	breaks.Store(true)
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/v2/" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			for q.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					break
				}
			}
			return
		}
		token := `{"token": "secret"}`
		w.Header().Set("Content-Length", strconv.Itoa(len(token)))
		if breaks.Load() {
			token = token[:5]
		}
		_, _ = w.Write([]byte(token)) // the client sees an error
	}))
	defer server.Close()
	s, err := Parse("oci://" + strings.TrimPrefix(server.URL, "http://") + "/org/model:v1")
	blackbox.Must(t, err)
	l := newLogin(s.server, s.Reference.Context(), false, http.DefaultTransport)
	if _, err := l.Get(t.Context()); err == nil || errors.Is(err, fs.ErrInvalid) {
		t.Errorf("an answer that breaks off: %v, which another attempt should follow", err)
	}
	breaks.Store(false)
	time.Sleep(1100 * time.Millisecond) // a failed try is good for a second
	if k, err := l.Get(t.Context()); err != nil || k.Kind+" "+k.Text != "Bearer secret" {
		t.Errorf("%+v, %v", k, err)
	}
}
