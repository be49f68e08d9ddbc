package oci_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/oci"
)

// client runs oras or crane in a directory, and gives what it says.
func client(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	place := os.Getenv("HBMFS_OCI_CLIENTS")
	if place == "" {
		t.Skip("needs HBMFS_OCI_CLIENTS, a directory with oras and crane of tests/suites/oci/clients (make test builds them)")
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(place, name), args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestPushedByORAS mounts files that oras pushed. A directory that it packed is refused.
func TestPushedByORAS(t *testing.T) {
	blackbox.NeedFUSE(t)
	r, dir, files := oci.New(t), suite.NewDir(t), model(t)
	var args []string
	for name, data := range files {
		if strings.Contains(name, "/") {
			delete(files, name)
			continue
		}
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
		args = append(args, name)
	}
	must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "sub", "in-a-directory"), []byte("data"), 0o644))
	files["sub/in-a-directory"] = []byte("data")
	client(t, dir, "oras", append([]string{"push", "--plain-http", r.Host() + "/org/model:v1", "sub/in-a-directory"}, args...)...)
	m := mount(t, r.Source("org/model:v1"))
	wantFiles(t, m, files)
	digest := strings.TrimSpace(client(t, dir, "crane", "digest", "--insecure", r.Host()+"/org/model:v1"))
	if got, want := m.Status(t).Source, r.Source("org/model@"+digest); got != want {
		t.Errorf("the source in status is %q, want %q", got, want)
	}
	client(t, dir, "oras", "push", "--plain-http", r.Host()+"/org/model:packed", "sub")
	wantSaid(t, []string{"is compressed, so that no part of it can be read by itself"}, "ls", r.Source("org/model:packed"))
}

// TestPushedByCrane refuses an image whose layers crane compressed.
func TestPushedByCrane(t *testing.T) {
	r, dir := oci.New(t), suite.NewDir(t)
	must(t, os.WriteFile(filepath.Join(dir, "one.tar"), oci.Tar(t, oci.Member{Name: "models/model.bin", Data: origintest.Data(1<<20, 1)}), 0o644))
	client(t, dir, "crane", "append", "--insecure", "--oci-empty-base", "-t", r.Host()+"/org/model:v1", "-f", "one.tar")
	wantSaid(t, []string{"tar+gzip", "is compressed, so that no part of it can be read by itself"}, "ls", r.Source("org/model:v1"))
}
