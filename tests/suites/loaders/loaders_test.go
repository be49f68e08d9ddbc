// Package loaders runs the packages that people train with (NumPy, MosaicML Streaming, LitData, webdataset,
// datasets, safetensors, ...) over the golden datasets, at the source and through a mount. The work is done by
// check.py; this test mounts for it.
package loaders

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestPeersRead needs FUSE, HBMFS_BINARY (a built hbmfs) and HBMFS_PEERS (a Python with the packages of
// tests/requirements-peers.txt). `make test-peers` provides all three.
func TestPeersRead(t *testing.T) {
	python := os.Getenv("HBMFS_PEERS")
	if python == "" {
		t.Skip("HBMFS_PEERS names no Python with the real readers: make test-peers makes one")
	}
	if os.Getenv("HBMFS_BINARY") == "" {
		t.Skip("HBMFS_BINARY names no built hbmfs (make test builds it)")
	}
	blackbox.NeedFUSE(t)
	binary, err := blackbox.NewBinary(os.Getenv("HBMFS_BINARY"))
	if err != nil {
		t.Fatal(err)
	}
	const source = "../../data/testdata"
	mounted := func(flags ...string) (dir string) {
		dir = t.TempDir()
		m, err := binary.Mount(t.Context(), source, dir, flags...)
		if err != nil {
			t.Fatal(err)
		}
		daemon, err := m.DaemonPID()
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if !blackbox.Within(time.Minute, func() bool { return blackbox.Ended(daemon) }) { // it uses the cache until then
				t.Errorf("the daemon %d has not ended", daemon)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir, decoded := mounted(), mounted("--cache-dir", t.TempDir(), "--cache-min-free", "1MiB")
	for _, mode := range []struct {
		name string
		args []string
	}{
		{"files", []string{"check.py", "--decoded", decoded, source, dir}},
		{"views", []string{"check.py", "--views", source, dir}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), python, mode.args...).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", strings.Join(mode.args, " "), err, out)
			}
			t.Logf("%s", out)
			// A checker that found nothing to check would succeed as well.
			if !regexp.MustCompile(`(?m)^OK\s`).Match(out) {
				t.Errorf("no reader read anything:\n%s", out)
			}
			if mode.name == "files" && !strings.Contains(string(out), "in place, decoded  mds-zstd") {
				t.Errorf("nothing decoded was read:\n%s", out)
			}
		})
	}
}
