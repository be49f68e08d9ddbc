package cufile_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func int64s(numbers []int64) (b []byte) {
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// rowsOfSamples checks that bench has measured samples of so many bytes on average.
func rowsOfSamples(t *testing.T, out []byte, bytes int64) {
	t.Helper()
	var r struct {
		Rows []struct {
			Path, Mode, Skip string
			Bytes            int64
			Seconds          float64
			Samples          float64 `json:"samples_per_s"`
		}
	}
	must(t, json.Unmarshal(out, &r))
	measured := 0
	for _, row := range r.Rows {
		if row.Mode == "samples" {
			measured++
		}
		each := float64(row.Bytes) / max(1, row.Seconds*row.Samples)
		if row.Skip != "" || (row.Mode == "samples") != (row.Samples > 0) || row.Samples > 0 && (each < float64(bytes)/2 || each > 2*float64(bytes)) {
			t.Errorf("%+v, of samples of %d bytes, have %.0f each", row, bytes, each)
		}
	}
	if measured == 0 {
		t.Errorf("no row of samples in\n%s", out)
	}
}

// TestTheDaemonCountsBytesByField has bench read a field of archives through a mount, without --modes, and asks the daemon.
func TestTheDaemonCountsBytesByField(t *testing.T) {
	source := t.TempDir()
	for shard := range 3 {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := range 40 {
			must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%04d.jpg", i), Mode: 0o644, Size: 5000}))
			_, err := w.Write(make([]byte, 5000))
			must(t, err)
		}
		must(t, w.Close())
		must(t, os.WriteFile(filepath.Join(source, fmt.Sprintf("%03d.tar", shard)), b.Bytes(), 0o644))
	}
	m, err := blackbox.Given(t).Mount(t.Context(), source, t.TempDir())
	must(t, err)
	defer func() { must(t, m.Close()) }()
	file := m.Path(".hbmfs", "views", "fields", "jpg.values.npy")
	out, err := blackbox.Given(t).Output(t.Context(), "bench", "--json", "--to", "host", "--seconds", "0.05", "--block", "64KiB", "--sample", "4KiB", "--samples", "50", file)
	must(t, err)
	rowsOfSamples(t, out, 5000)
	if !blackbox.Within(time.Minute, func() bool {
		for _, c := range m.Status(t).Control.Clients {
			if len(c.Fields) == 1 && c.Fields[0].Field == "jpg" && c.Fields[0].Path == "host" && c.Fields[0].Bytes > 0 && c.Fields[0].Bytes == c.Bytes["host"] {
				return true
			}
		}
		return false
	}) {
		t.Errorf("the daemon counts %+v", m.Status(t).Control.Clients)
	}
	out, err = blackbox.Given(t).Output(t.Context(), "status", m.Path())
	must(t, err)
	if !strings.Contains(string(out), "host of field jpg") {
		t.Errorf("status lacks the field:\n%s", out)
	}
}

// TestBenchMeasuresSamples measures samples of fields as a mount shows them, and refuses damaged ones.
func TestBenchMeasuresSamples(t *testing.T) {
	hbmfs := blackbox.Given(t)
	fields := filepath.Join(t.TempDir(), "fields")
	must(t, os.Mkdir(fields, 0o755))
	write := func(name string, header int, content []byte) string {
		path := filepath.Join(fields, name)
		must(t, os.WriteFile(path, append(make([]byte, header), content...), 0o644))
		return path
	}
	offsets := []int64{0}
	for i := range int64(100) {
		offsets = append(offsets, offsets[i]+i*331%9000)
	}
	write("fields.json", 0, fmt.Appendf(nil, `{"samples": 100, "fields": [
		{"name": "jpg", "file": "jpg", "kind": "ragged", "dtype": "uint16", "shape": [], "bytes": %d},
		{"name": "latent", "file": "latent", "kind": "dense", "dtype": "uint8", "shape": [8192], "bytes": 819200}], "shards": []}`, 2*offsets[100]))
	write("jpg.offsets.npy", 128, int64s(offsets))
	for file, bytes := range map[string]int64{write("jpg.values.npy", 128, make([]byte, 2*offsets[100])): 2 * offsets[100] / 100, write("latent.npy", 256, make([]byte, 819200)): 8192} {
		for _, to := range [][]string{{"--to", "host"}, blackbox.FakeGPU(t)} {
			args := append([]string{"bench", "--json", "--seconds", "0.05", "--block", "64KiB", "--sample", "4KiB", "--samples", "50", "--modes", "random,samples"}, to...)
			out, err := hbmfs.Output(t.Context(), append(args, file)...)
			must(t, err)
			rowsOfSamples(t, out, bytes)
		}
	}
	for what, c := range map[string]struct {
		offsets []int64
		file    string
		want    string
	}{
		"falling offsets": {slices.Concat([]int64{0, 5, 4}, offsets[3:]), "jpg.values.npy", "sample 1 ends at 4"},
		"too few":         {offsets[90:], "jpg.values.npy", "no offsets of 100 samples"},
		"too many values": {append(slices.Clone(offsets[:100]), offsets[100]+1), "jpg.values.npy", "of values"},
		"no field":        {offsets, "jpg.offsets.npy", "holds no field of samples"},
	} {
		write("jpg.offsets.npy", 0, int64s(c.offsets))
		out, err := hbmfs.Output(t.Context(), "bench", "--to", "host", "--block", "100", "--sample", "100", "--modes", "samples", filepath.Join(fields, c.file))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %s, want %q", what, err, out, c.want)
		}
	}
}
