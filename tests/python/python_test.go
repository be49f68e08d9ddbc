// Package python runs the tests of the Python package: pytest over the files beside this one, with libhbmfs, a mount of
// the golden datasets, and fake GPU libraries where there is no GPU. The work is done in Python; this test prepares.
package python

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// patience bounds one run of pytest or pip. Nothing that works comes near it: the tests took 5 minutes alone, and 11 beside other suites on two
// CPUs.
const patience = 24 * time.Minute

// TestPythonPackage needs FUSE, a C compiler, HBMFS_BINARY (a built hbmfs) and HBMFS_PYTHON (a Python with the packages
// of tests/requirements.txt). `make test` provides them. PYTEST_ARGS are given to pytest.
func TestPythonPackage(t *testing.T) { pytest(t, needPython(t), "--ignore=peers", ".") }

// TestPythonPackageBesidePeers runs the tests in peers, which need the packages that others train with: HBMFS_PEERS names a Python
// with those of tests/requirements-peers.txt, too. `make test-peers` provides it.
func TestPythonPackageBesidePeers(t *testing.T) {
	python := os.Getenv("HBMFS_PEERS")
	if python == "" {
		t.Skip("HBMFS_PEERS names no Python with the packages of others: make test-peers makes one")
	}
	pytest(t, python, "peers")
}

// pytest runs pytest over what args name, beside a mount of the golden datasets.
func pytest(t *testing.T, python string, args ...string) {
	t.Helper()
	if os.Getenv("HBMFS_BINARY") == "" {
		t.Skip("HBMFS_BINARY names no built hbmfs (make test builds it)")
	}
	if err := blackbox.CanMount(); err != nil {
		t.Skip(err)
	}
	library := library(t)
	binary, err := blackbox.NewBinary(os.Getenv("HBMFS_BINARY"))
	if err != nil {
		t.Fatal(err)
	}
	source := absolute(t, "../testdata")
	m, err := binary.Mount(t.Context(), source, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	args = append(append([]string{"-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=8"}, args...), strings.Fields(os.Getenv("PYTEST_ARGS"))...)
	out := run(t, append(environment(t, library),
		"PYTHONPATH="+absolute(t, "../../python"),
		"HBMFS_TEST_SOURCE="+source,
		"HBMFS_TEST_MOUNT="+m.Path(),
		"HBMFS_TEST_FAKES="+fakes(t),
	), python, args...)
	// pytest fails when it collects nothing, but a suite that skips itself would succeed.
	if !regexp.MustCompile(`(?m)^\d+ passed`).MatchString(out) || regexp.MustCompile(`\d+ skipped`).MatchString(out) {
		t.Errorf("tests were skipped, or none ran")
	}
}

// TestKilledSaves kills processes that save at the system calls of saving: killed_saves.py says what must be there then. It needs
// strace, which may attach to other processes, beside what TestPythonPackage needs.
func TestKilledSaves(t *testing.T) {
	python := needPython(t)
	if err := blackbox.CanInject(); err != nil {
		t.Skipf("no system call can be made to fail: %v", err)
	}
	run(t, append(environment(t, library(t)), "PYTHONPATH="+absolute(t, "../../python")), python, "killed_saves.py", t.TempDir())
}

// TestPythonWheel builds the wheel, installs it where nothing else is, reads with it, and runs its command. It needs HBMFS_PYTHON.
func TestPythonWheel(t *testing.T) {
	python := needPython(t)
	env := append(environment(t, library(t)), "PIP_NO_INDEX=1", "PIP_DISABLE_PIP_VERSION_CHECK=1")
	dir := t.TempDir()
	run(t, env, python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", dir, "../../python")
	wheels, err := filepath.Glob(filepath.Join(dir, "hbmfs-*-py3-none-linux_*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("%d wheels for Linux: %v", len(wheels), err)
	}
	site := filepath.Join(dir, "site")
	run(t, env, python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheels[0])
	env = append(env, "HBMFS_LIBRARY=", "PYTHONPATH="+site)
	out := run(t, env, python, "-c", `
import sys, hbmfs, numpy
path = sys.argv[1]
with hbmfs.open(path) as ds:
    assert hbmfs.__file__.startswith(sys.argv[2]), hbmfs.__file__
    want = numpy.load(path)
    assert (ds.gather([0, 7], 100) == numpy.stack([want[:100], want[7:107]])).all()
    assert "torch" not in sys.modules
    print("read with", hbmfs.__file__)
`, absolute(t, "../testdata/npy/tokens_00000.npy"), site)
	if !strings.Contains(out, "read with") {
		t.Errorf("nothing was read")
	}
	if os.Getenv("HBMFS_VERSION") == "" {
		return // the library and the command are of any version
	}
	// The command, the library and the package are of one version, however each writes it.
	said := run(t, env, filepath.Join(site, "bin", "hbmfs"), "--version")
	run(t, env, python, "-c", `
import ctypes, importlib.metadata, sys, hbmfs
from packaging.version import Version
library = ctypes.CDLL(hbmfs._native.find())
library.hbmfs_version.restype = ctypes.c_char_p
versions = [hbmfs.__version__, importlib.metadata.version("hbmfs"), library.hbmfs_version().decode(), sys.argv[1].split()[-1]]
assert len(set(map(Version, versions))) == 1, versions
`, said)
}

func needPython(t *testing.T) string {
	t.Helper()
	python := os.Getenv("HBMFS_PYTHON")
	if python == "" {
		t.Skip("HBMFS_PYTHON names no Python with pytest (make test makes one)")
	}
	return python
}

// library is HBMFS_LIBRARY, or a libhbmfs that is built here.
func library(t *testing.T) string {
	t.Helper()
	if given := os.Getenv("HBMFS_LIBRARY"); given != "" {
		return absolute(t, given)
	}
	path := filepath.Join(t.TempDir(), "libhbmfs.so")
	run(t, append(os.Environ(), "CGO_ENABLED=1"), "go", "build", "-buildvcs=false", "-buildmode=c-shared",
		"-tags", "nonvml,netgo,osusergo", "-o", path, "../../cmd/libhbmfs")
	return path
}

// fakes compiles the fake GPU libraries into a folder.
func fakes(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := blackbox.NewFakes(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// environment is this process's. Python keeps its bytecode outside of the tree: hundreds of processes import torch, and each would
// take a second of CPU more without.
func environment(t *testing.T, library string) []string {
	t.Helper()
	return append(os.Environ(), "HBMFS_LIBRARY="+library, "PYTHONDONTWRITEBYTECODE=", "PYTHONPYCACHEPREFIX="+t.TempDir(), "TMPDIR="+t.TempDir())
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// run runs a program to its end and gives what it printed.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = env
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if len(out) > 0 {
		t.Logf("%s", out)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}
