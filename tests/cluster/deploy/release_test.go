package deploy_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// release returns the folder that make dist made, and the version in the names of its files.
func release(t *testing.T) (dir, version string) {
	t.Helper()
	dir = os.Getenv("HBMFS_DIST")
	if dir == "" {
		t.Skip("needs HBMFS_DIST: make dist makes it, in more minutes than make test has")
	}
	chart := filepath.Base(files(t, filepath.Join(dir, "hbmfs-chart-*.tgz"))[0])
	return dir, strings.TrimSuffix(strings.TrimPrefix(chart, "hbmfs-chart-"), ".tgz")
}

// A release has every file for both architectures, and the sums of all.
func TestReleaseIsComplete(t *testing.T) {
	dir, version := release(t)
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	packaged := strings.ReplaceAll(version, "-", "~")
	want := []string{
		"hbmfs-" + version + ".cdx.json", "hbmfs-image-" + version + ".tar", "hbmfs-kubernetes-" + version + ".yaml", "hbmfs-chart-" + version + ".tgz",
		"hbmfs-observability_" + packaged + "_all.deb", "hbmfs-observability-" + packaged + "-1.noarch.rpm",
	}
	for _, arch := range []string{"amd64", "arm64"} {
		want = append(want, "hbmfs-"+version+"-linux-"+arch+".tar.gz", "hbmfs-"+version+"-linux-"+arch+"-nogpu.tar.gz",
			filepath.Base(files(t, filepath.Join(dir, "hbmfs-*_"+machine(arch)+".whl"))[0]))
		abi := regexp.MustCompile(`libhbmfs(\d+)_`).FindStringSubmatch(string(sums))
		if abi == nil {
			t.Fatalf("no package of the library in\n%s", sums)
		}
		for _, name := range []string{"hbmfs", "libhbmfs" + abi[1], "libhbmfs-dev"} {
			want = append(want, name+"_"+packaged+"_"+arch+".deb", strings.Replace(name, "-dev", "-devel", 1)+"-"+packaged+"-1."+machine(arch)+".rpm")
		}
	}
	for _, name := range want {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(content), name); !strings.Contains(string(sums), line) {
			t.Errorf("SHA256SUMS has no line %s", line)
		}
	}
	if have := strings.Count(string(sums), "\n"); have != len(want) {
		t.Errorf("%d files, want %d:\n%s", have, len(want), sums)
	}
}

// A wheel has the library and the command, which ask of a machine no more than manylinux_2_17 promises (PEP 600): five libraries
// of glibc, and no symbol that is newer.
func TestReleaseWheels(t *testing.T) {
	dir, _ := release(t)
	for _, path := range files(t, filepath.Join(dir, "hbmfs-*-py3-none-manylinux_2_17_*.whl")) {
		wheel, err := zip.OpenReader(path)
		if err != nil {
			t.Fatal(err)
		}
		var programs []string
		for _, f := range wheel.File {
			content := contentOf(t, f)
			if bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
				programs = append(programs, filepath.Base(f.Name))
				asManylinux(t, path+": "+f.Name, content)
			}
			if filepath.Base(f.Name) == "hbmfs" && f.Mode()&0o111 == 0 {
				t.Errorf("%s: the command cannot be run: %v", path, f.Mode())
			}
		}
		if slices.Sort(programs); !slices.Equal(programs, []string{"hbmfs", "libhbmfs.so"}) {
			t.Errorf("%s has the programs %q", path, programs)
		}
		_ = wheel.Close() // it was only read
	}
}

func contentOf(t *testing.T, f *zip.File) []byte {
	t.Helper()
	r, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }() // it was only read
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func asManylinux(t *testing.T, name string, content []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, library := range needed {
		if !slices.Contains([]string{"libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}, library) {
			t.Errorf("%s needs %s", name, library)
		}
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, s := range symbols {
		var minor int
		if _, err := fmt.Sscanf(s.Version, "GLIBC_2.%d", &minor); s.Version != "" && (err != nil || minor > 17) {
			t.Errorf("%s needs %s of %s", name, s.Name, s.Version)
		}
	}
}

// The image is one for both architectures.
func TestReleaseImage(t *testing.T) {
	dir, version := release(t)
	file, err := os.Open(filepath.Join(dir, "hbmfs-image-"+version+".tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // it was only read
	name, images := layout(unpack(t, file)).images(t)
	if name != "ghcr.io/hbmfs/hbmfs:"+strings.ReplaceAll(version, "+", "-") || len(images) != 2 || len(images["arm64"].Layers) != 1 {
		t.Errorf("%s: %v", name, images)
	}
}
