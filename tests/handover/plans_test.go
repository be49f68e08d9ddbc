package handover_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(400 * time.Millisecond) // so that the plan takes longer than a daemon lives
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
	time.Sleep(400 * time.Millisecond) // longer than between two saves
	there := m.Status(t).Cache.Segments
	m.Crash(t)
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
