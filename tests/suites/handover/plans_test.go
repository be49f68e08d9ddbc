package handover_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// What a reader past FUSE said that it will read is fetched by the next daemon, in order, and what it has read is not asked for again.
func TestPlansOutliveADaemon(t *testing.T) {
	blackbox.NeedRoot(t)
	const segments = 96
	source, of := suite.NewDir(t), make([]byte, segments<<20)
	_, err := rand.NewChaCha8([32]byte{1}).Read(of)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(source, "far.bin"), of, 0o644))
	files := http.FileServer(http.Dir(source))
	const most = segments / 3 // that the first daemon is given
	var asked atomic.Int64
	killed := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > most {
			select {
			case <-killed:
			case <-r.Context().Done():
				return
			}
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	m := mount(t, server.URL+"/far.bin", "--cache-dir", suite.NewDir(t), "--cache-segment", "1MiB", "--cache-size", "200MiB", "--cache-min-free=1MiB")
	m.NeedHandover(t)
	f, err := os.Open(m.Path("far.bin"))
	must(t, err)
	// Else the kernel reads a little of the segments behind these ahead, and what was read of a segment nobody asks for again.
	must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM))
	order := rand.New(rand.NewPCG(1, 2)).Perm(segments)
	var spans []cufile.Span
	for _, i := range order {
		spans = append(spans, cufile.Span{Offset: int64(i) << 20, Length: 1 << 20})
	}
	reader, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice})
	must(t, err)
	planned, err := reader.Open(t.Context(), f.Name())
	must(t, err)
	must(t, planned.Prefetch(t.Context(), spans))
	got := make([]byte, 1<<20)
	for _, i := range order[:4] {
		_, err := f.ReadAt(got, int64(i)<<20)
		must(t, err)
		// No plan has it any more, so a kill before it is published would take it.
		if !blackbox.Within(patience, func() bool { return local(t, f, int64(i)<<20, 1<<20) }) {
			t.Fatalf("segment %d was read and is not published", i)
		}
	}
	if !blackbox.Within(patience, func() bool { return saved(t, m.Status(t).Handover.PID) }) {
		t.Error("no plan is saved")
	}
	there := m.Status(t).Cache.Segments
	m.Crash(t)
	close(killed)
	if !blackbox.Within(patience, func() bool { return m.Status(t).Cache.Segments >= segments }) {
		t.Errorf("%d of %d segments are there, %d were when the daemon went", m.Status(t).Cache.Segments, segments, there)
		for i := range order {
			if !local(t, f, int64(i)<<20, 1<<20) {
				t.Logf("segment %d is missing, at place %d of the plan", i, slices.Index(order, i))
			}
		}
	}
	t.Logf("%d of %d segments were there when the daemon went", there, segments)
	if there == segments {
		t.Error("the daemon has fetched all before it was killed")
	}
	for _, i := range order {
		_, err := f.ReadAt(got, int64(i)<<20)
		must(t, err)
		if !bytes.Equal(got, of[i<<20:][:1<<20]) {
			t.Errorf("segment %d has wrong bytes", i)
		}
	}
	m.PID = m.Status(t).PID
	must(t, errors.Join(f.Close(), planned.Close(), reader.Close()))
}

// saved tells whether a keeper has a plan: its file is written for the first time.
func saved(t *testing.T, keeper int) bool {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", keeper))
	must(t, err)
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, "/memfd:hbmfs-plans") {
			info, err := os.Stat(fd)
			return err == nil && info.Size() > 0
		}
	}
	return false
}

// local tells whether bytes of a file lie in published segments.
func local(t *testing.T, f *os.File, offset, n int64) bool {
	t.Helper()
	for batch, err := range control.Batches(f, offset, n, false) {
		must(t, err)
		for _, e := range batch.Extents {
			if e.Flags&control.ExtentPending != 0 {
				return false
			}
		}
	}
	return true
}
