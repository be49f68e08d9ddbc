package oci_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/oci"
)

// TestWeightsOfARegistry loads the tensors of a mounted artifact, as docs/guide/weights-engines.md has it, past FUSE and in the host's memory.
func TestWeightsOfARegistry(t *testing.T) {
	blackbox.NeedFUSE(t)
	python := os.Getenv("HBMFS_PYTHON")
	if python == "" {
		t.Skip("HBMFS_PYTHON names no Python with hbmfs's needs: make test makes one")
	}
	r, files := oci.New(t), model(t)
	r.Set(func() { r.Redirects = true })
	pushModelPack(t, r, "v1", files)
	m := mount(t, r.Source(repo+":v1"), "--cache-dir", suite.NewDir(t))
	cmd := exec.CommandContext(t.Context(), python, "-c", `import sys, hbmfs
tensors = hbmfs.load_safetensors(sys.argv[1], device="cpu")
print(len(tensors), "tensors")`, m.Point)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../../../python")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "tensors") || strings.HasPrefix(string(out), "0 ") {
		t.Errorf("%v\n%s", err, out)
	}
}
