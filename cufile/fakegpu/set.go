package fakegpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Set is the libraries that the tests of a package need. They are compiled once.
type Set struct {
	Libraries []string
	Load      func(library string) error // as package driver loads libcuda, which not every build can

	dir     string
	missing string // why there are none, empty where there are
}

// Run compiles the libraries, runs the tests, and gives their exit code.
func (s *Set) Run(m *testing.M) int {
	var err error
	if s.dir, err = os.MkdirTemp("", "hbmfs-fakes-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(s.dir) }()
	if s.missing = s.why(); s.missing == "" {
		if err := Compile(s.dir, s.Libraries...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// why names the thing that this machine or build lacks for the fakes, or is empty.
func (s *Set) why() string {
	if _, err := exec.LookPath("cc"); err != nil {
		return "the fake GPU libraries need a C compiler: " + err.Error()
	}
	if err := s.Load("libc.so.6"); err != nil && !strings.Contains(err.Error(), "too old or another library") {
		return err.Error() // a build that loads no library
	}
	return ""
}

// Copy copies a library to a name of its own, so that every test gets a fresh one in a process that never unloads a library. Where there
// are no fakes, it skips the test.
func (s *Set) Copy(t testing.TB, name string) string {
	t.Helper()
	if s.missing != "" {
		t.Skip(s.missing)
	}
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
