package deploy_test

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// pack returns the package of a kind for this machine, as make packages made it.
func pack(t *testing.T, kind string) string {
	t.Helper()
	path := filepath.Join(given(t, "HBMFS_PACKAGES"), "hbmfs_"+runtime.GOARCH+"."+kind)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("make packages makes it: %v", err)
	}
	return path
}

func TestDebInstallsRunsAndRemoves(t *testing.T) { install(t, "deb", "dpkg") }
func TestRPMInstallsRunsAndRemoves(t *testing.T) { install(t, "rpm", "rpm") }

// install installs a package on this machine, in a mount namespace where nobody else sees it.
func install(t *testing.T, kind, program string) {
	t.Helper()
	path := pack(t, kind)
	for _, need := range []string{program, "unshare"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("needs %s: %v", need, err)
		}
	}
	if err := blackbox.CanMount(); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs FUSE and root: %v", err)
	}
	source := t.TempDir()
	data := make([]byte, 300_000)
	_, _ = rand.Read(data) // it never fails
	if err := os.WriteFile(filepath.Join(source, "data.bin"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	out := strings.TrimSpace(output(t, true, "unshare", "--mount", "--propagation", "private",
		"sh", filepath.Join("testdata", "install.sh"), kind, path, t.TempDir(), source))
	if strings.HasSuffix(out, "no overlay") {
		t.Skipf("needs overlayfs, so that nothing is installed for others: %s", out)
	}
	if !strings.HasSuffix(out, "passed") {
		t.Errorf("%s", out)
	}
}

// Packages are the same bits each time only if no file in them has the time of its making.
func TestPackagesAreReproducible(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skipf("needs dpkg-deb: %v", err)
	}
	times := map[string]int{}
	for line := range strings.Lines(output(t, true, "dpkg-deb", "--contents", pack(t, "deb"))) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "root/root" {
			t.Fatalf("not root's: %s", line)
		}
		times[fields[3]+" "+fields[4]]++
	}
	if len(times) != 1 {
		t.Errorf("files have different times: %v", times)
	}
}
