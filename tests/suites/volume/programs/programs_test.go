// Package programs_test tests the built hbmfs under the programs that people save checkpoints with: they run unmodified on a checkpoint volume.
package programs_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
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

// runPrograms runs programs of programs.py by the Python that a variable names. One process imports torch, which takes seconds, and forks each program.
func runPrograms(t *testing.T, variable string, programs ...string) {
	t.Helper()
	python := os.Getenv(variable)
	if python == "" {
		t.Skip("needs ", variable)
	}
	blackbox.NeedRoot(t)
	v := suite.MountOn(t, suite.NewDir(t), suite.NewDir(t), "--checkpoints", "--allow-other")
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(len(programs))*5*time.Minute)
	defer cancel()
	library := os.Getenv("HBMFS_LIBRARY")
	cmd := exec.CommandContext(ctx, python, append([]string{"programs.py", v.Point}, programs...)...)
	cmd.Env = append(themes.Environment(t, library), "HBMFS_PROGRAM="+suite.Path())
	cmd.WaitDelay = 10 * time.Second // of what a killed one has forked
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	rest := string(out)
	for _, program := range programs {
		said, after, _ := strings.Cut(rest, "== "+program+" ")
		how, after, _ := strings.Cut(after, "\n")
		rest = after
		t.Run(program, func(t *testing.T) {
			switch {
			case program == "past" && library == "":
				t.Skip("needs HBMFS_LIBRARY")
			case strings.HasPrefix(how, "skip: "):
				t.Skip(strings.TrimPrefix(how, "skip: "))
			case how != "ok":
				t.Errorf("%s %q\n%s\nrefused: %q", program, how, said, v.Status(t).Checkpoints.Refused)
			}
		})
	}
}
