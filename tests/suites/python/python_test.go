// Package python_test tests the Python package's wheel. The packages of themes beside this file run its tests in Python.
package python_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

// Every file of tests in Python has one theme, and every theme a package that runs it.
func TestEveryFileHasATheme(t *testing.T) {
	for _, of := range []struct {
		folder, run string
		themes      map[string][]string
	}{{".", "Run", themes.All()}, {"peers", "RunPeers", themes.Peers()}} {
		var listed []string
		for theme, files := range of.themes {
			listed = append(listed, files...)
			text, err := os.ReadFile(filepath.Join(theme, theme+"_test.go"))
			if err != nil || !strings.Contains(string(text), "themes."+of.run+`(t, "`+theme+`")`) {
				t.Errorf("nothing runs the theme %s: %v", theme, err)
			}
		}
		slices.Sort(listed)
		if there := themes.Files(t, of.folder); !slices.Equal(listed, there) {
			t.Errorf("themes.go has the files\n%q\nof these, which should be in one theme each:\n%q", listed, there)
		}
	}
}

// TestPythonWheel builds the wheel, installs it where nothing else is, reads with it, and runs its command. It needs HBMFS_PYTHON.
func TestPythonWheel(t *testing.T) {
	python := themes.Python(t)
	env := append(themes.Environment(t, themes.Library(t)), "PIP_NO_INDEX=1", "PIP_DISABLE_PIP_VERSION_CHECK=1")
	dir := t.TempDir()
	themes.Output(t, env, python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", dir, "../../../python")
	wheels, err := filepath.Glob(filepath.Join(dir, "hbmfs-*-py3-none-linux_*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("%d wheels for Linux: %v", len(wheels), err)
	}
	site := filepath.Join(dir, "site")
	themes.Output(t, env, python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheels[0])
	env = append(env, "HBMFS_LIBRARY=", "PYTHONPATH="+site)
	out := themes.Output(t, env, python, "-c", `
import sys, hbmfs, numpy
path = sys.argv[1]
with hbmfs.open(path) as ds:
    assert hbmfs.__file__.startswith(sys.argv[2]), hbmfs.__file__
    want = numpy.load(path)
    assert (ds.gather([0, 7], 100) == numpy.stack([want[:100], want[7:107]])).all()
    assert "torch" not in sys.modules
    print("read with", hbmfs.__file__)
`, absolute(t, "../../data/testdata/npy/tokens_00000.npy"), site)
	if !strings.Contains(out, "read with") {
		t.Errorf("nothing was read")
	}
	if os.Getenv("HBMFS_VERSION") == "" {
		return // the library and the command are of any version
	}
	// The command, the library and the package are of one version, however each writes it.
	said := themes.Output(t, env, filepath.Join(site, "bin", "hbmfs"), "--version")
	themes.Output(t, env, python, "-c", `
import ctypes, importlib.metadata, sys, hbmfs
from packaging.version import Version
library = ctypes.CDLL(hbmfs._lib._native.find())
library.hbmfs_version.restype = ctypes.c_char_p
versions = [hbmfs.__version__, importlib.metadata.version("hbmfs"), library.hbmfs_version().decode(), sys.argv[1].split()[-1]]
assert len(set(map(Version, versions))) == 1, versions
`, said)
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
