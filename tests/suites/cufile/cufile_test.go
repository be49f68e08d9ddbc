// Package cufile_test tests `hbmfs read` and `hbmfs bench` as users run them: over a real mount, and with a fake GPU
// where there is none. Tests that need FUSE, root or a C compiler say so when they skip.
package cufile_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// shards writes NumPy shards of random u16 tokens.
func shards(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	random := rand.NewChaCha8([32]byte{7})
	for i, tokens := range []int{300_000, 3_001, 77_777} {
		header := fmt.Sprintf("{'descr': '<u2', 'fortran_order': False, 'shape': (%d,), }", tokens)
		header += strings.Repeat(" ", 117-len(header)) + "\n"
		data := make([]byte, 2*tokens)
		if _, err := random.Read(data); err != nil {
			t.Fatal(err)
		}
		file := append([]byte("\x93NUMPY\x01\x00\x76\x00"+header), data...)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("train_%03d.npy", i)), file, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

type readResult struct {
	Bytes  int64            `json:"bytes"`
	SHA256 string           `json:"sha256"`
	Paths  map[string]int64 `json:"paths"`
	Choice struct {
		Path, Why string
	} `json:"choice"`
}

func TestReadAFileOfAMountByEveryPath(t *testing.T) {
	blackbox.NeedRoot(t)
	hbmfs := blackbox.Given(t)
	m, err := hbmfs.Mount(t.Context(), shards(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	view, err := m.View("tokens.npy")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(view)
	if err != nil {
		t.Fatal(err)
	}
	gpu := blackbox.FakeGPU(t)
	t.Setenv("FAKE_CUFILE_MOVED", "nvfs")
	for path, rest := range map[string]string{"host": "host", "staged": "staged", "mapped": "staged", "compat": "staged", "direct": "staged"} {
		t.Run(path, func(t *testing.T) {
			for _, span := range [][2]int64{{0, int64(len(data))}, {127, 2}, {600_001, 5}, {3, 700_000}} {
				args := []string{"read", "--require", path, "--json", "--offset", fmt.Sprint(span[0]), "--length", fmt.Sprint(span[1])}
				out, err := hbmfs.Output(t.Context(), append(append(args, gpu...), view)...)
				if err != nil {
					t.Fatal(err)
				}
				var r readResult
				if err := json.Unmarshal(out, &r); err != nil {
					t.Fatal(err)
				}
				want := sha256.Sum256(data[span[0] : span[0]+span[1]])
				if r.Bytes != span[1] || r.SHA256 != hex.EncodeToString(want[:]) {
					t.Errorf("%d bytes at %d: %+v, want sha256 %x", span[1], span[0], r, want)
				}
				// The header exists only in the mount; everything else takes the path.
				inMount := max(0, min(128, span[0]+span[1])-span[0])
				moved := map[string]int64{rest: inMount}
				moved[path] += span[1] - inMount
				for p, n := range moved {
					if r.Paths[p] != n {
						t.Errorf("%d bytes at %d went by %v, want %v", span[1], span[0], r.Paths, moved)
					}
				}
			}
		})
	}
	status, err := os.ReadFile(m.Path(".hbmfs", "status"))
	if err != nil || !strings.Contains(string(status), "hbmfs reader") || !strings.Contains(string(status), "asked for") {
		t.Errorf("the status does not show the reader and its reasons: %v\n%s", err, status)
	}
}

func TestReadVerifiesAgainstTheManifest(t *testing.T) {
	hbmfs := blackbox.Given(t)
	texts, packed := t.TempDir(), filepath.Join(t.TempDir(), "packed")
	if err := os.WriteFile(filepath.Join(texts, "a.txt"), []byte(strings.Repeat("Bytes go where they are wanted. ", 20_000)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := hbmfs.Output(t.Context(), "pack", "--to", "npy", texts, packed); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(packed, "*.npy"))
	if err != nil || len(files) == 0 {
		t.Fatalf("pack wrote no npy: %v", err)
	}
	out, err := hbmfs.Output(t.Context(), "read", "--to", "host", "--json", files[0])
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Bytes, Verified int64 }
	if err := json.Unmarshal(out, &r); err != nil || r.Verified != r.Bytes || r.Bytes == 0 {
		t.Fatalf("verified %d of %d bytes: %v", r.Verified, r.Bytes, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(files[0], data, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := hbmfs.Output(t.Context(), "read", "--to", "host", files[0]); err == nil || !strings.Contains(err.Error(), "the manifest says") {
		t.Errorf("a flipped bit: %v, want an error that names the manifest", err)
	}
}

func TestReadErrorsNameTheFix(t *testing.T) {
	path := blackbox.Given(t).Path()
	gpu := blackbox.FakeGPU(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 100_000), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  string
		args []string
		code int
		want string
	}{
		"no libcuda":         {"", []string{"--libcuda", "libnone.so"}, 1, "install the NVIDIA driver"},
		"no such GPU":        {"", append([]string{"--to", "gpu:7"}, gpu...), 1, "gpu 7 does not exist: this process sees gpu 0 to 0"},
		"GPU out of memory":  {"FAKE_CUDA_MEMORY=1000000", gpu, 1, "has 1000000 of 1000000 bytes free"},
		"no libcufile":       {"", append(append([]string{"--path", "compat"}, gpu...), "--libcufile", "libnone.so"), 1, "install NVIDIA's gds-tools"},
		"direct not proven":  {"FAKE_CUFILE_MOVED=posix", append([]string{"--require", "direct"}, gpu...), 1, "POSIX reads with compat mode off"},
		"contradiction":      {"", []string{"--path", "staged", "--require", "direct"}, 2, "contradict"},
		"unknown path":       {"", []string{"--path", "teleport"}, 2, "is none of"},
		"unknown place":      {"", []string{"--to", "moon"}, 2, "gpu:N or host"},
		"outside":            {"", []string{"--to", "host", "--offset", "100001"}, 2, "is not inside"},
		"nothing to read at": {"", []string{"--to", "host", "--length", "100001"}, 2, "is not inside"},
		"a length below 0":   {"", []string{"--to", "host", "--length", "-5"}, 2, "is not inside"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), path, append(append([]string{"read"}, c.args...), file)...)
			cmd.Env = append(os.Environ(), c.env)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
				t.Errorf("%v, want exit code %d and %q in:\n%s", err, c.code, c.want, out)
			}
			if strings.Count(string(out), "\n") != 1 {
				t.Errorf("more than one line:\n%s", out)
			}
		})
	}
}

func TestBenchMeasuresEveryPath(t *testing.T) {
	hbmfs := blackbox.Given(t)
	gpu := blackbox.FakeGPU(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE_CUFILE_MOVED", "nvfs")
	args := append([]string{"bench", "--json", "--seconds", "0.05", "--block", "256KiB", "--samples", "50", "--window", "512KiB", "--slot", "128KiB",
		"--paths", "staged,mapped,compat,direct"}, gpu...)
	out, err := hbmfs.Output(t.Context(), append(args, file)...)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Wall float64 `json:"wall_gb_per_s"`
		Rows []struct {
			Path, Mode, Skip string
			GBps             float64 `json:"gb_per_s"`
			CPU              float64 `json:"cpu_s_per_gb"`
		}
	}
	if err := json.Unmarshal(out, &r); err != nil || r.Wall <= 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	measured := map[string]bool{}
	for _, row := range r.Rows {
		if row.Skip != "" || row.GBps <= 0 || row.CPU <= 0 {
			t.Errorf("%+v", row)
		}
		measured[row.Path+" "+row.Mode] = true
	}
	for _, want := range []string{"plain sequential", "staged random", "staged gather", "mapped kept gather", "mapped moving sequential",
		"mapped first sequential", "compat sequential", "direct gather"} {
		if !measured[want] {
			t.Errorf("no row %q in\n%s", want, out)
		}
	}
}
