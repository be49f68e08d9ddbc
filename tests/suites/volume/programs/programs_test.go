// Package programs_test tests the built hbmfs under the programs that people save checkpoints with: they run unmodified on a checkpoint volume.
package programs_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) { os.Exit(blackbox.Main("programs", &suite, m.Run)) }

// TestPrograms: what people save checkpoints with, unmodified. It needs HBMFS_PYTHON, a Python with the packages of tests/requirements.txt. hbmfs's own
// readers need libhbmfs, too.
func TestPrograms(t *testing.T) {
	runPrograms(t, "HBMFS_PYTHON", "torch_save", "dcp", "safetensors", "numpy", "shell", "past")
}

// TestPeersPrograms are those of make test-peers.
func TestPeersPrograms(t *testing.T) {
	runPrograms(t, "HBMFS_PEERS", "deepspeed", "transformers", "trainer", "megatron", "lightning", "torchtitan")
}

// runPrograms runs programs of programs.py by the Python that a variable names.
func runPrograms(t *testing.T, variable string, programs ...string) {
	t.Helper()
	python := os.Getenv(variable)
	if python == "" {
		t.Skip("needs ", variable)
	}
	blackbox.NeedRoot(t)
	v := suite.MountOn(t, suite.NewDir(t), suite.NewDir(t), "--checkpoints", "--allow-other")
	package_, err := filepath.Abs("../../../../python")
	blackbox.Must(t, err)
	for _, program := range programs {
		t.Run(program, func(t *testing.T) {
			if program == "past" && os.Getenv("HBMFS_LIBRARY") == "" {
				t.Skip("needs HBMFS_LIBRARY")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, python, "programs.py", program, v.Point)
			cmd.Env = append(os.Environ(), "HBMFS_PROGRAM="+suite.Path(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+package_+":"+os.Getenv("PYTHONPATH"))
			out, err := cmd.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			switch last := lines[len(lines)-1]; {
			case err != nil:
				t.Errorf("%v\n%s\nrefused: %q", err, out, v.Status(t).Checkpoints.Refused)
			case strings.HasPrefix(last, "skip: "):
				t.Skip(strings.TrimPrefix(last, "skip: "))
			}
		})
	}
}
