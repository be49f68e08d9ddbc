package cufile_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

// counters reads counters of a mount by the beginnings of their lines.
func counters(t *testing.T, m *blackbox.Mount, names ...string) []int64 {
	t.Helper()
	metrics, err := os.ReadFile(m.Path(".hbmfs", "metrics"))
	if err != nil {
		t.Fatal(err)
	}
	values := make([]int64, len(names))
	for i, name := range names {
		_, rest, ok := strings.Cut(string(metrics), "\n"+name+" ")
		if _, err := fmt.Sscan(rest, &values[i]); err != nil || !ok {
			t.Fatalf("no %s in the metrics: %v", name, err)
		}
	}
	return values
}

const smallFiles = 1200

// smallMount mounts many small files in two folders.
func smallMount(t *testing.T) (m *blackbox.Mount, names []string, datas [][]byte) {
	t.Helper()
	blackbox.NeedRoot(t)
	b := blackbox.Given(t)
	dir := t.TempDir()
	for i := range smallFiles {
		folder := fmt.Sprintf("part_%d", i%2)
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		data := bytes.Repeat([]byte(fmt.Sprintf("<%d>", i)), i%40) // some are empty
		name := filepath.Join(folder, fmt.Sprintf("sample_%05d.raw", i))
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
		names, datas = append(names, name), append(datas, data)
	}
	m, err := b.Mount(t.Context(), dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range names {
		names[i] = m.Path(names[i])
	}
	return m, names, datas
}

func TestManySmallFilesCostNoRoundTripEach(t *testing.T) {
	m, names, datas := smallMount(t)
	const bound = 64
	r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Descriptors: bound, Arena: 1 << 20, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	before, left := descriptors(t), leaks.Files(t)
	asked := []string{"hbmfs_lookups_total", `hbmfs_opens_total{path="passthrough"}`, `hbmfs_opens_total{path="daemon"}`, "hbmfs_control_tickets_total", "hbmfs_control_connections"}
	start := counters(t, m, asked...)
	var files []*cufile.File
	var errs []error
	most := watch(t, func() {
		files, errs = r.OpenMany(t.Context(), names)
		for i, f := range files {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			readSpan(t, f, datas[i], 0, f.Size())
		}
	})
	// Looking at the metrics costs some, and so does finding the folders.
	for i, n := range counters(t, m, asked...) {
		if n-start[i] > 20 {
			t.Errorf("%s grew by %d for %d files", asked[i], n-start[i], len(names))
		}
	}
	if some := 16; most > before+bound+control.MaxObjects+some { // an answer has so many, of which some may be one too many
		t.Errorf("%d descriptors were open, %d before", most, before)
	}
	for _, i := range []int{smallFiles - 1, 3, 700, 4} { // in no order
		if int64(len(datas[i])) != files[i].Size() {
			t.Errorf("%s has %d bytes, want %d", names[i], files[i].Size(), len(datas[i]))
		}
		readSpan(t, files[i], datas[i], 1, files[i].Size()-1)
	}
	for _, f := range files {
		errs = append(errs, closed(f))
	}
	if err := errors.Join(append(errs, closed(r))...); err != nil {
		t.Error(err)
	}
	if n := leases(t, m, 0); n != 0 {
		t.Errorf("%d leases after all was closed", n)
	}
	if err := left(); err != nil {
		t.Error(err)
	}
}

// Reads that are given up lose nothing: what was on its way then comes again when it is needed.
func TestManySmallFilesAfterReadsThatWereGivenUp(t *testing.T) {
	m, names, datas := smallMount(t)
	r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Descriptors: 400, Arena: 1 << 20, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	files, errs := r.OpenMany(t.Context(), names)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for round := range 100 { // each is given up somewhere else
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(round)*100*time.Microsecond)
		for i := 400 + 7*round; i < len(files); i++ {
			v, err := files[i].Read(ctx, 0, files[i].Size())
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("round %d, file %d: %v", round, i, err)
			} else if err != nil {
				break
			}
			v.Release()
		}
		cancel()
	}
	start := counters(t, m, "hbmfs_control_tickets_total")
	for i, f := range files {
		readSpan(t, f, datas[i], 0, f.Size())
	}
	if n := counters(t, m, "hbmfs_control_tickets_total")[0] - start[0]; n > smallFiles/4 { // few, where a slow machine gave nothing back in time
		t.Errorf("%d files were asked for one by one", n)
	}
	for _, f := range files {
		errs = append(errs, closed(f))
	}
	if err := errors.Join(append(errs, closed(r))...); err != nil {
		t.Error(err)
	}
}

// Whatever cannot be had by a lookup alone is opened all the same, and errors stay with their files.
func TestOpenManyOfAllKinds(t *testing.T) {
	m, names, datas := smallMount(t)
	outside := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(outside, []byte("not of a mount"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(names[11], link); err != nil {
		t.Fatal(err)
	}
	r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Arena: 1 << 20, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	files, errs := r.OpenMany(t.Context(), []string{names[5], outside, m.Path("no", "such"), link, m.Path("part_0"), names[5], m.Path("part_0", "missing")})
	want := [][]byte{datas[5], []byte("not of a mount"), nil, datas[11], nil, datas[5], nil}
	for i, f := range files {
		switch {
		case want[i] == nil:
			if errs[i] == nil || f != nil || strings.Contains(errs[i].Error(), "\n") {
				t.Errorf("file %d: %v, want one sentence", i, errs[i])
			}
			continue
		case errs[i] != nil:
			t.Errorf("file %d: %v", i, errs[i])
			continue
		}
		readSpan(t, f, want[i], 0, f.Size())
		if err := f.Prefetch(t.Context(), []cufile.Span{{Offset: 0, Length: f.Size()}}); err != nil {
			t.Errorf("file %d: %v", i, err)
		}
	}
	for _, i := range []int{2, 6} {
		if !errors.Is(errs[i], syscall.ENOENT) {
			t.Errorf("file %d: %v, want that it does not exist", i, errs[i])
		}
	}
	for _, f := range files {
		if f != nil {
			errs[0] = errors.Join(errs[0], closed(f))
		}
	}
	if err := errors.Join(errs[0], closed(r)); err != nil {
		t.Error(err)
	}
}

func TestReadCommandTakesManyFiles(t *testing.T) {
	m, names, datas := smallMount(t)
	hbmfs := blackbox.Given(t)
	out, err := hbmfs.Output(t.Context(), append([]string{"read", "--to", "host", "--json"}, names[:300]...)...)
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(out))
	for i := range 300 {
		var r struct {
			File, SHA256 string
			Bytes        int64
		}
		if err := decoder.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if want := sha256.Sum256(datas[i]); r.File != names[i] || r.Bytes != int64(len(datas[i])) || r.SHA256 != hex.EncodeToString(want[:]) {
			t.Fatalf("file %d: %+v, want sha256 %x of %s", i, r, want, names[i])
		}
	}
	if _, err := hbmfs.Output(t.Context(), "read", "--to", "host", names[1], m.Path("missing")); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("%v, want an error that names the missing file", err)
	}
}

// Two readers of one mount hear of each other from its daemon, and auto stops staging, which they would do at each
// other's cost.
func TestAutoKnowsWhoSharesTheHost(t *testing.T) {
	blackbox.NeedRoot(t)
	b := blackbox.Given(t)
	gpu := blackbox.FakeGPU(t)
	source, data := t.TempDir(), bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	for n := range 3 { // one for each reader: auto takes what another has registered
		if err := os.WriteFile(fmt.Sprintf("%s/%d.raw", source, n), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := b.Mount(t.Context(), source, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	var files []*cufile.File
	var readers []*cufile.Reader
	for n := range 3 {
		r, err := cufile.New(t.Context(), cufile.Options{Libraries: cufile.Libraries{CUDA: gpu[1], NVML: gpu[5]}, Arena: 1 << 20, Threads: 2, Slot: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		f, err := r.Open(t.Context(), m.Path(fmt.Sprintf("%d.raw", n)))
		if err != nil {
			t.Fatal(err)
		}
		files, readers = append(files, f), append(readers, r)
		v, err := f.Read(t.Context(), 1000, 100_000)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, v.Len())
		if err := v.CopyTo(t.Context(), got, 0); err != nil || !bytes.Equal(got, data[1000:101_000]) {
			t.Errorf("reader %d: wrong bytes, %v", n, err)
		}
		c, several := v.Choice(), fmt.Sprintf("several readers (%d)", n+1)
		path := cufile.Staged
		if runtime.NumCPU() < 4*(n+1) {
			path = cufile.Mapped
		}
		if told := strings.Contains(c.Why, several); told != (n > 0) || c.Path != path {
			t.Errorf("reader %d: %+v, want %s, and %s named from the second on", n, c, path, several)
		}
		v.Release()
	}
	for i := range files {
		if err := closed(files[i], readers[i]); err != nil {
			t.Error(err)
		}
	}
}
