package lies_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// serveTexts is a web server of a few files, some of which it denies.
func serveTexts(t *testing.T, files map[string]string, denied ...string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		text, ok := files[name]
		switch {
		case slices.Contains(denied, name):
			w.WriteHeader(http.StatusForbidden)
			return
		case !ok:
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, text))
		http.ServeContent(w, r, "", time.Unix(1e9, 0), strings.NewReader(text))
	}))
	t.Cleanup(s.Close)
	return s
}

// TestDeniedFiles mounts a directory of which the server denies some files: they have their places, nobody can open them, and
// the command that mounts says so.
func TestDeniedFiles(t *testing.T) {
	blackbox.NeedFUSE(t)
	s := serveTexts(t, map[string]string{
		"index.json": `{"chunks": [{"filename": "a.bin"}, {"filename": "b.bin"}, {"filename": "sub/c.bin"}, {"filename": "sub/d.bin"}]}`,
		"a.bin":      "some tokens",
	}, "b.bin", "sub/c.bin", "sub/d.bin")
	for _, flags := range [][]string{nil, {"--cache-dir", suite.NewDir(t)}} {
		point, log := suite.NewDir(t), filepath.Join(suite.NewDir(t), "log")
		said := filepath.Join(suite.NewDir(t), "said")
		out, err := os.Create(said)
		must(t, err)
		cmd := suite.Command(t.Context(), append(append([]string{"mount", "--log-file", log}, flags...), s.URL+"/", point)...)
		cmd.Stdout, cmd.Stderr = out, out // a file: the daemon would keep a pipe
		must(t, cmd.Run())
		must(t, out.Close())
		m := &mounted{&blackbox.Mounted{Mount: suite.At(point), Point: point, Log: log}}
		m.PID, err = m.DaemonPID()
		must(t, err)
		t.Cleanup(func() { m.End(t) })
		text, err := os.ReadFile(said)
		must(t, err)
		for _, want := range []string{"3 files", "b.bin", "403"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("the command says %q, and not %q", text, want)
			}
		}
		var names []string
		must(t, filepath.WalkDir(point, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				names = append(names, strings.TrimPrefix(path, point+"/"))
			}
			return err
		}))
		if want := []string{"a.bin", "b.bin", "index.json", "sub/c.bin", "sub/d.bin"}; !slices.Equal(names, want) {
			t.Errorf("listed are %q, want %q", names, want)
		}
		if text, err := os.ReadFile(m.Path("a.bin")); err != nil || string(text) != "some tokens" {
			t.Errorf("%q, %v", text, err)
		}
		for _, name := range []string{"b.bin", "sub/c.bin"} {
			if _, err := os.Open(m.Path(name)); !errors.Is(err, unix.EACCES) {
				t.Errorf("open %s: %v", name, err)
			}
			if info, err := os.Stat(m.Path(name)); err != nil || info.Size() != 0 || info.Mode() != 0 {
				t.Errorf("stat %s: %v, %v", name, info, err)
			}
		}
		m.deniesLookup(t, "b.bin", "sub/c.bin")
	}
}

// deniesLookup asks the control channel for files that nobody can open.
func (m *mounted) deniesLookup(t *testing.T, names ...string) {
	t.Helper()
	if !blackbox.Within(patience, func() bool { _, err := os.Stat(m.Path(".hbmfs/control")); return err == nil }) {
		t.Fatal("the mount has no control socket")
	}
	c, err := control.Dial(t.Context(), m.Point, "test")
	must(t, err)
	defer func() { _ = c.Close() }() // nothing is held
	for found, err := range c.Lookup(t.Context(), names) {
		if err == nil {
			err = found.Err
		}
		if !errors.Is(err, unix.EACCES) {
			t.Errorf("LOOKUP: %v, want EACCES", err)
		}
	}
}

// TestModelOverHTTP mounts the files that from_pretrained loads: weights that an index names, and the files beside them that none does.
func TestModelOverHTTP(t *testing.T) {
	blackbox.NeedFUSE(t)
	files := map[string]string{
		"m/model.safetensors.index.json": `{"weight_map": {"w": "model-00001-of-00001.safetensors"}}`, "m/model-00001-of-00001.safetensors": "weights",
		"m/config.json": `{"model_type": "llama"}`, "m/generation_config.json": "{}", "m/tokenizer.json": "{}", "m/tokenizer_config.json": "{}", "m/special_tokens_map.json": "{}",
	}
	m := mount(t, serveTexts(t, files).URL+"/m/", "")
	for name, want := range files {
		if got, err := os.ReadFile(m.Path(strings.TrimPrefix(name, "m/"))); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := os.Stat(m.Path("vocab.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
}
