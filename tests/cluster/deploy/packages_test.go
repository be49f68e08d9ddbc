package deploy_test

import (
	"crypto/rand"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// pack returns a package of a kind for this machine, as make packages made it.
func pack(t *testing.T, name, kind string) string {
	t.Helper()
	pattern := map[string]string{"deb": "_*_" + runtime.GOARCH + ".deb", "rpm": "-[0-9]*." + machine(runtime.GOARCH) + ".rpm"}[kind]
	found := files(t, filepath.Join(given(t, "HBMFS_PACKAGES"), name+pattern))
	if len(found) != 1 {
		t.Fatalf("make packages makes one: %v", found)
	}
	return found[0]
}

// machine is what rpm and the C library call an architecture that Go knows.
func machine(arch string) string {
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
}

func TestDebInstallsRunsAndRemoves(t *testing.T) { install(t, "deb", "dpkg") }
func TestRPMInstallsRunsAndRemoves(t *testing.T) { install(t, "rpm", "rpm") }

// install installs a package on this machine, in a mount namespace where nobody else sees it.
func install(t *testing.T, kind, program string) {
	t.Helper()
	path := pack(t, "hbmfs", kind)
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
	for line := range strings.Lines(output(t, true, "dpkg-deb", "--contents", pack(t, "hbmfs", "deb"))) {
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

// The library's packages have it under the name that programs are linked with, the links to it, its header, and what pkg-config
// says of them.
func TestLibraryPackages(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skipf("needs dpkg-deb: %v", err)
	}
	root := t.TempDir()
	library := files(t, filepath.Join(given(t, "HBMFS_PACKAGES"), "libhbmfs[0-9]*_"+runtime.GOARCH+".deb"))[0]
	for _, path := range []string{library, pack(t, "libhbmfs-dev", "deb")} {
		output(t, true, "dpkg-deb", "--extract", path, root)
	}
	name, _, _ := strings.Cut(filepath.Base(library), "_")
	soname := "libhbmfs.so." + strings.TrimPrefix(name, "libhbmfs")
	folder := filepath.Join(root, "usr", "lib", machine(runtime.GOARCH)+"-linux-gnu")
	if have := dynamic(t, filepath.Join(folder, "libhbmfs.so"), elf.DT_SONAME); !slices.Equal(have, []string{soname}) {
		t.Errorf("its name is %q, want %s", have, soname)
	}
	if link, err := os.Readlink(filepath.Join(folder, "libhbmfs.so")); link != soname || err != nil {
		t.Errorf("the compiler follows a link to %q, %v", link, err)
	}
	described, err := os.ReadFile(filepath.Join(folder, "pkgconfig", "libhbmfs.pc"))
	if err != nil || !strings.Contains(string(described), "\nlibdir=/usr/lib/"+machine(runtime.GOARCH)+"-linux-gnu\n") {
		t.Errorf("libhbmfs.pc: %v\n%s", err, described)
	}
	if _, err := os.Stat(filepath.Join(root, "usr", "include", "libhbmfs.h")); err != nil {
		t.Error(err)
	}
	wanted := files(t, filepath.Join(given(t, "HBMFS_PACKAGES"), "libhbmfs[0-9]*.rpm"))[0]
	if provides := output(t, true, "rpm", "--query", "--package", "--provides", wanted); !strings.Contains(provides, soname+"()(64bit)") {
		t.Errorf("the .rpm provides %s", provides)
	}
}

// dynamic returns what the dynamic section of a program says under a tag.
func dynamic(t *testing.T, path string, tag elf.DynTag) []string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	have, err := f.DynString(tag)
	if err != nil {
		t.Fatal(err)
	}
	return have
}
