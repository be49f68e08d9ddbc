package volumes_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

func TestPythonVolumes(t *testing.T) { themes.Run(t, "volumes") }

// TestKilledSaves kills processes that save at the system calls of saving: killed_saves.py says what must be there then. It needs
// strace, which may attach to other processes, beside what TestPythonVolumes needs.
func TestKilledSaves(t *testing.T) {
	python := themes.Python(t)
	if err := blackbox.CanInject(); err != nil {
		t.Skipf("no system call can be made to fail: %v", err)
	}
	themes.Output(t, themes.Environment(t, themes.Library(t)), python, "killed_saves.py", t.TempDir())
}
