package cufilejson

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/tailscale/hujson"
)

// corpus gives the files of testdata/corpus: planted errors, and files that are good.
func corpus(tb testing.TB) []string {
	tb.Helper()
	files, err := filepath.Glob("testdata/corpus/*.json")
	if err != nil || len(files) < 40 {
		tb.Fatalf("%d files in the corpus: %v", len(files), err)
	}
	return files
}

func read(tb testing.TB, file string) []byte {
	tb.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// TestEveryPlantedErrorIsFound compares each finding, with line and column, with the list beside the file.
func TestEveryPlantedErrorIsFound(t *testing.T) {
	for _, file := range corpus(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			result := Lint(read(t, file), Options{})
			var got strings.Builder
			for _, f := range result.Findings {
				fmt.Fprintln(&got, f)
			}
			want := string(read(t, strings.TrimSuffix(file, ".json")+".want"))
			if got.String() != want {
				t.Errorf("found\n%swant\n%s", got.String(), want)
			}
			good := strings.HasPrefix(filepath.Base(file), "good-")
			if good != (want == "") {
				t.Errorf("good files, and no others, have no findings")
			}
		})
	}
}

// TestWhatIsKnownOfTheMachine: the same file is good or not, as its machine and the intent are.
func TestWhatIsKnownOfTheMachine(t *testing.T) {
	const h200 = 140 << 30
	file := `{ "properties": { "max_device_pinned_mem_size_kb": 33554432, "allow_compat_mode": true, "gds_fallback_io": false } }`
	for _, c := range []struct {
		name  string
		text  string
		opts  Options
		key   string
		level Level
		fix   string
	}{
		{"a proof is asked for", file, Options{Direct: true}, "properties.allow_compat_mode", Error, "false"},
		{"a proof is asked for, and the default is to fall back", `{}`, Options{Direct: true}, "properties.allow_compat_mode", Error, "add false"},
		{"the GPU has more memory", file, Options{HBM: h200}, "properties.max_device_pinned_mem_size_kb", Warning, "146800640"},
		{"the GPU has more memory than the default", `{}`, Options{HBM: h200}, "properties.max_device_pinned_mem_size_kb", Warning, "add 146800640"},
		{"libcufile is older than the setting", file, Options{Version: 1015}, "properties.gds_fallback_io", Warning, ""},
		{"NFS without addresses", file, Options{Filesystem: "nfs4"}, "properties.rdma_dev_addr_list", Warning, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Lint([]byte(c.text), c.opts)
			if len(r.Findings) != 1 || r.Findings[0].Key != c.key || r.Findings[0].Level != c.level {
				t.Fatalf("found %v, want one %s about %s", r.Findings, c.level, c.key)
			}
			if r.Findings[0].Fix != c.fix {
				t.Errorf("the fix is %q, want %q", r.Findings[0].Fix, c.fix)
			}
		})
	}
	if r := Lint([]byte(file), Options{HBM: 24 << 30, Version: 1019, Filesystem: "ext4"}); len(r.Findings) != 0 {
		t.Errorf("on a machine that it fits, found %v", r.Findings)
	}
}

func TestAFileThatIsTooLarge(t *testing.T) {
	r := Lint(bytes.Repeat([]byte(" "), MaxSize+1), Options{})
	if r.Errors() != 1 {
		t.Errorf("found %v", r.Findings)
	}
}

// TestNVIDIAsOwnFile needs HBMFS_CUFILE_JSON, the path of the file that NVIDIA installs.
func TestNVIDIAsOwnFile(t *testing.T) {
	file := os.Getenv("HBMFS_CUFILE_JSON")
	if file == "" {
		t.Skip("HBMFS_CUFILE_JSON names no cufile.json of NVIDIA's (/usr/local/cuda/gds/cufile.json where CUDA is)")
	}
	if r := Lint(read(t, file), Options{}); len(r.Findings) != 0 {
		t.Errorf("found %v", r.Findings)
	}
}

// TestLibcufileAgrees needs HBMFS_LIBCUFILE, the path of a libcufile.so.0 of version 1.15, with or without a GPU. It must
// refuse each file with a syntax error, or with a finding that says so.
func TestLibcufileAgrees(t *testing.T) {
	library := os.Getenv("HBMFS_LIBCUFILE")
	if library == "" {
		t.Skip("HBMFS_LIBCUFILE names no libcufile.so.0")
	}
	for _, file := range corpus(t) {
		text := read(t, file)
		r := Lint(text, Options{})
		refused := false
		for _, f := range r.Findings {
			const since117 = "gpu_bounce_buffer"
			refused = refused || strings.Contains(f.Message, "refuses the file") && !strings.Contains(f.Key, since117) || strings.Contains(f.Message, "syntax error")
		}
		if refused && libcufileTakes(t, library, text) {
			t.Errorf("%s: libcufile takes it", file)
		}
	}
}

const childLibrary = "HBMFS_TEST_LIBCUFILE"

// libcufileTakes asks the library in a process of its own, since it reads its configuration once.
func libcufileTakes(t *testing.T, library string, text []byte) bool {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cufile.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Dir = t.TempDir() // for cufile.log
	cmd.Env = append(os.Environ(), childLibrary+"="+library, "CUFILE_ENV_PATH_JSON="+file)
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), "configuration load error"), strings.Contains(string(out), "Json::LogicError"):
		return false
	case err == nil:
		return true
	}
	t.Fatalf("the child: %v\n%s", err, out)
	return false
}

func TestMain(m *testing.M) {
	library := os.Getenv(childLibrary)
	if library == "" {
		os.Exit(m.Run())
	}
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	open, err := purego.Dlsym(handle, "cuFileDriverOpen")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	purego.SyscallN(open) // what it thinks of its configuration it prints
	os.Exit(0)
}

// checkPlaces says what must hold of every text: findings lie in it, and one without errors is JSON with comments.
func checkPlaces(t *testing.T, text []byte) {
	t.Helper()
	r := Lint(text, Options{})
	for _, f := range r.Findings {
		if lines := bytes.Count(text, []byte("\n")) + 1; f.Line < 1 || f.Line > lines || f.Column < 1 {
			t.Errorf("%v lies outside of a file of %d lines", f, lines)
		}
	}
	if _, err := hujson.Parse(text); err != nil && r.Errors() == 0 {
		t.Errorf("no error is found, and the parser says: %v", err)
	}
}

func FuzzLint(f *testing.F) {
	for _, file := range corpus(f) {
		f.Add(read(f, file))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		checkPlaces(t, text)
		Lint(text, Options{Direct: true, HBM: 1 << 37, Filesystem: "nfs", Version: 1015})
	})
}

// TestTruncated cuts every file of the corpus at each byte.
func TestTruncated(t *testing.T) {
	for _, file := range corpus(t) {
		text := read(t, file)
		for n := range text {
			checkPlaces(t, text[:n])
		}
	}
}

// TestWhatIsWrittenIsGood: what Write makes has no findings on the machine that it was made for.
func TestWhatIsWrittenIsGood(t *testing.T) {
	const h200 = 140 << 30
	for _, workload := range []string{Read, Checkpoint, Weights} {
		for _, n := range []Node{
			{},
			{GPU: "GPU 0, NVIDIA H200", HBM: h200, GPUs: 8, CPUs: 192, Filesystem: "ext4", Version: 1015, P2PDMA: true},
			{GPU: "GPU 0\nnext line", HBM: h200 + 12345, GPUs: 8, CPUs: 4, Filesystem: "xfs", Version: 1019, P2PDMA: true, Blocked: "a\nb */ \" c"},
		} {
			text, err := Write(n, workload)
			if err != nil {
				t.Fatal(err)
			}
			opts := Options{HBM: n.HBM, Filesystem: n.Filesystem, Version: n.Version, Direct: n.Blocked == ""}
			if r := Lint(text, opts); len(r.Findings) != 0 {
				t.Errorf("%s: found %v in\n%s", workload, r.Findings, text)
			}
			if lines := bytes.Count(text, []byte("// ")); lines < 15 {
				t.Errorf("%s: %d comments, want one for each value", workload, lines)
			}
		}
	}
	if _, err := Write(Node{}, "sleep"); err == nil {
		t.Error("a workload that nobody knows is taken")
	}
}
