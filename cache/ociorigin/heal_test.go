package ociorigin

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/oci"
)

const healLogin = "user:password-secret"

// only lists an artifact of one file.
func (o *Artifact) only(t *testing.T) *layout.Object {
	t.Helper()
	l, err := o.List(t.Context())
	blackbox.Must(t, err)
	if len(l.Objects) != 1 {
		t.Fatalf("%d objects", len(l.Objects))
	}
	return l.Objects[0]
}

// logIn writes a file of logins and names it.
func logIn(t *testing.T, r *oci.Registry, login string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "auth.json")
	blackbox.Must(t, os.WriteFile(name, fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, r.Host(), base64.StdEncoding.EncodeToString([]byte(login))), 0o600))
	t.Setenv(authFile, name)
}

// asked counts requests of a path.
func asked(r *oci.Registry, path string) (n int) {
	for _, q := range r.Requests() {
		if strings.HasSuffix(q.Path, path) {
			n++
		}
	}
	return n
}

// TestLoginsHeal has a login that worked refused for a while: by the server of tokens, by the registry itself, and by both. Sixteen readers
// get their bytes all the same. Meanwhile they ask for no more than one token a second.
func TestLoginsHeal(t *testing.T) {
	alone(t)
	data := origintest.Data(1<<20, 1)
	for name, refuses := range map[string]func(path string) int{
		"tokens":     func(path string) int { return map[bool]int{true: 403}[path == "/token"] },
		"blobs":      func(path string) int { return map[bool]int{true: 401}[strings.Contains(path, "/blobs/")] },
		"everything": func(string) int { return 403 },
	} {
		t.Run(name, func(t *testing.T) {
			r := oci.New(t)
			r.Push(t, "org/model", "v1", oci.ModelConfig, r.Blob(t, "org/model", oci.ModelRaw, data, oci.FilePath, "x"))
			r.Set(func() { r.Login = healLogin })
			logIn(t, r, healLogin)
			o := open(t, r.Source("org/model:v1"), fetch.Options{})
			defer func() { blackbox.Must(t, o.Close()) }()
			obj := o.only(t)
			before, began := asked(r, "/token"), time.Now()
			var refused atomic.Int64
			r.Set(func() {
				r.Answer = func(w http.ResponseWriter, q *http.Request) bool {
					status := refuses(q.URL.Path)
					if status == 0 || refused.Add(1) > 3 && time.Since(began) > 1500*time.Millisecond {
						return false
					}
					w.WriteHeader(status)
					return true
				}
			})
			r.Revoke()
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					p := make([]byte, len(data))
					if _, err := obj.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, data) {
						t.Errorf("a reader meets a refusal that passes: %v", err)
					}
				})
			}
			wg.Wait()
			if n, most := asked(r, "/token")-before, 3+int(time.Since(began)/time.Second); n > most {
				t.Errorf("%d tokens were asked for, want at most %d", n, most)
			}
		})
	}
}

// TestRegistriesThatBeginToWantALogin serves everybody at first. Later it wants a login: without one the reason is said at once, and reads go on
// after somebody has logged in.
func TestRegistriesThatBeginToWantALogin(t *testing.T) {
	for _, basic := range []bool{false, true} {
		t.Run(fmt.Sprint("basic ", basic), func(t *testing.T) {
			alone(t)
			r, data := oci.New(t), origintest.Data(1<<20, 1)
			r.Push(t, "org/model", "v1", oci.ModelConfig, r.Blob(t, "org/model", oci.ModelRaw, data, oci.FilePath, "x"))
			o := open(t, r.Source("org/model:v1"), fetch.Options{})
			defer func() { blackbox.Must(t, o.Close()) }()
			obj, p := o.only(t), make([]byte, len(data))
			r.Set(func() { r.Basic, r.Login = basic, healLogin })
			if _, err := obj.ReadAt(t.Context(), p, 0); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "docker login") {
				t.Errorf("nobody has logged in: %v", err)
			}
			logIn(t, r, healLogin)
			if !blackbox.Within(blackbox.Patience, func() bool {
				_, err := obj.ReadAt(t.Context(), p, 0)
				return err == nil
			}) || !bytes.Equal(p, data) {
				t.Error("a login under a mount is not found")
			}
			r.Set(func() { r.Login = "" })
			if _, err := obj.ReadAt(t.Context(), p, 0); err != nil {
				t.Errorf("a registry that wants no login any more: %v", err)
			}
		})
	}
}

// TestLoginsThatNeverWorked are refused at once.
func TestLoginsThatNeverWorked(t *testing.T) {
	alone(t)
	r := oci.New(t)
	r.Push(t, "org/model", "v1", oci.ModelConfig, r.Blob(t, "org/model", oci.ModelRaw, []byte("data"), oci.FilePath, "x"))
	logIn(t, r, "user:wrong-secret")
	for _, basic := range []bool{false, true} {
		r.Set(func() { r.Basic, r.Login = basic, healLogin })
		o := open(t, r.Source("org/model:v1"), fetch.Options{})
		_, err := o.List(t.Context())
		if !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "secret") {
			t.Errorf("a wrong login: %v", err)
		}
		blackbox.Must(t, o.Close())
	}
	if n := len(r.Requests()); n > 8 {
		t.Errorf("%d requests were made for two refusals", n)
	}
}
