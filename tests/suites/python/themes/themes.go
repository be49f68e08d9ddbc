// Package themes runs the tests of the Python package, which are the test_*.py of tests/suites/python: pytest over the files of one theme, with
// libhbmfs, a mount of the golden datasets, and fake GPU libraries where there is no GPU. The work is done in Python; this package prepares.
//
// Each theme is a package of Go tests below tests/suites/python, since go test runs packages side by side and limits the time of each.
package themes

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// last is the time, before the end of a package's time, in which Python that hangs says where.
const last = 30 * time.Second

// All has the files of every theme, which is also the name of its package.
func All() map[string][]string {
	return map[string][]string{
		"readers": {
			"test_arguments.py", "test_bad_input.py", "test_closing.py", "test_docs.py", "test_fork.py", "test_interface.py", "test_kv.py", "test_leaks.py", "test_library.py",
			"test_memory.py", "test_names.py", "test_paths.py", "test_waits.py",
		},
		"weights": {"test_bad_safetensors.py", "test_gpu_loaders.py", "test_group.py", "test_into.py", "test_page_cache.py", "test_prefetch.py", "test_tensors.py", "test_torch_zip.py", "test_vllm.py", "test_weights.py"},
		"datasets": {
			"test_dataset.py", "test_loaders.py", "test_mixture.py", "test_nanogpt.py", "test_packed.py", "test_part.py",
			"test_permutation.py", "test_recognition.py", "test_resume.py", "test_samples.py", "test_stream_faults.py", "test_token_stream.py", "test_workers.py",
		},
		"checkpoints": {"test_checkpoints.py", "test_checkpoints_ended.py", "test_checkpoints_ranks.py", "test_saves.py"},
		"volumes":     {"test_publishing.py", "test_thin_disk.py", "test_volume.py", "test_writer.py"},
		"dcp":         {"test_dcp.py", "test_dcp_group.py", "test_dcp_stager.py"},
		"dcpwriter":   {"test_dcp_writer.py", "test_dcp_writer_group.py"},
	}
}

// Peers has the files in peers, which need the packages that others train and serve with, by the name of the package that runs them.
func Peers() map[string][]string {
	return map[string][]string{
		"training": {"test_blend.py", "test_coming_from.py", "test_deepspeed.py", "test_megatron.py", "test_pack_ray.py", "test_pack_sources.py", "test_samples_of_parquet.py", "test_samples_of_peers.py", "test_saves_of_peers.py"},
		"serving":  {"test_fastsafetensors.py", "test_kv_engines.py", "test_safetensors_prefetch.py", "test_sentencepiece.py", "test_tokenizers.py", "test_transformers.py"},
	}
}

// RunPeers runs the files of a theme of [Peers]. HBMFS_PEERS names a Python with the packages of tests/requirements-peers.txt, too. `make test-peers`
// provides it.
func RunPeers(t *testing.T, theme string) {
	t.Helper()
	python := os.Getenv("HBMFS_PEERS")
	if python == "" {
		t.Skip("HBMFS_PEERS names no Python with the packages of others: make test-peers makes one")
	}
	var paths []string
	for _, name := range Peers()[theme] {
		paths = append(paths, filepath.Join("peers", name))
	}
	Pytest(t, python, paths...)
}

// Files gives the names of the files of tests in a folder below tests/suites/python, in order.
func Files(t *testing.T, folder string) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root(t), "tests", "suites", "python", folder, "test_*.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		names = append(names, filepath.Base(path))
	}
	return names
}

// Run runs the files of a theme. It needs FUSE, a C compiler, HBMFS_BINARY (a built hbmfs) and HBMFS_PYTHON (a Python with the
// packages of tests/requirements.txt). `make test` provides them. PYTEST_ARGS are given to pytest.
func Run(t *testing.T, theme string) {
	t.Helper()
	args := []string{"--ignore=peers"}
	for _, name := range Files(t, ".") {
		if !slices.Contains(All()[theme], name) {
			args = append(args, "--ignore="+name)
		}
	}
	Pytest(t, Python(t), append(args, ".")...)
}

// Pytest runs pytest in tests/suites/python over the tests of args, beside a mount of the golden datasets. The lines of HBMFS_PYTEST_ONLY name tests
// to run instead.
func Pytest(t *testing.T, python string, args ...string) {
	t.Helper()
	if os.Getenv("HBMFS_BINARY") == "" {
		t.Skip("HBMFS_BINARY names no built hbmfs (make test builds it)")
	}
	if err := blackbox.CanMount(); err != nil {
		t.Skip(err)
	}
	library := Library(t)
	binary, err := blackbox.NewBinary(os.Getenv("HBMFS_BINARY"))
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(root(t), "tests", "data", "testdata")
	m, err := binary.Mount(t.Context(), source, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if only := os.Getenv("HBMFS_PYTEST_ONLY"); only != "" {
		args = strings.Split(only, "\n")
	}
	args = append(append([]string{"-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=8"}, args...), strings.Fields(os.Getenv("PYTEST_ARGS"))...)
	out := Output(t, append(Environment(t, library),
		"HBMFS_TEST_SOURCE="+source,
		"HBMFS_TEST_MOUNT="+m.Path(),
		"HBMFS_TEST_FAKES="+fakes(t),
	), python, args...)
	// pytest fails when it collects nothing, but a suite that skips itself would succeed.
	if !regexp.MustCompile(`(?m)^\d+ passed`).MatchString(out) || regexp.MustCompile(`\d+ skipped`).MatchString(out) {
		t.Errorf("tests were skipped, or none ran")
	}
}

// Python returns the Python with pytest, or skips the test.
func Python(t *testing.T) string {
	t.Helper()
	python := os.Getenv("HBMFS_PYTHON")
	if python == "" {
		t.Skip("HBMFS_PYTHON names no Python with pytest (make test makes one)")
	}
	return python
}

// Library is HBMFS_LIBRARY, or a libhbmfs that is built here.
func Library(t *testing.T) string {
	t.Helper()
	if given := os.Getenv("HBMFS_LIBRARY"); given != "" {
		path, err := filepath.Abs(given)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := filepath.Join(t.TempDir(), "libhbmfs.so")
	Output(t, append(os.Environ(), "CGO_ENABLED=1"), "go", "build", "-buildvcs=false", "-buildmode=c-shared",
		"-tags", "nonvml,netgo,osusergo", "-o", path, "github.com/hbmfs/hbmfs/cmd/libhbmfs")
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

// Environment is this process's, with the package of this tree. Python keeps its bytecode outside of the tree: in PYTHONPYCACHEPREFIX, which
// `make test` sets for all packages and runs, or anew. Importing torch takes 6 s of CPU without it and 2.5 s with it. Each process computes with
// one thread: several threads spin while they wait for each other, and took a quarter of the CPU time of the tests with ranks.
func Environment(t *testing.T, library string) []string {
	t.Helper()
	bytecode := os.Getenv("PYTHONPYCACHEPREFIX")
	if bytecode == "" {
		bytecode = t.TempDir()
	}
	return append(os.Environ(), "HBMFS_LIBRARY="+library, "PYTHONDONTWRITEBYTECODE=", "PYTHONPYCACHEPREFIX="+bytecode, "OMP_NUM_THREADS=1",
		"TMPDIR="+t.TempDir(), "PYTHONPATH="+filepath.Join(root(t), "python"))
}

// Output runs a program in tests/suites/python to its end and returns its output. Python that hangs prints the stacks of its threads at SIGABRT.
func Output(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx := t.Context()
	if end, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-last))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGABRT) }
	cmd.Dir = filepath.Join(root(t), "tests", "suites", "python")
	cmd.Env = append(env, "PYTHONFAULTHANDLER=1")
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

// root is the directory with go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("no directory above has go.mod: %v", err)
	return ""
}
