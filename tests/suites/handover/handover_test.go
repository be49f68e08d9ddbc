package handover_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// A long run is HBMFS_HANDOVERS=100 HBMFS_HANDOVER_FILES=100000 go test -run TestReadersSeeNoHandover ./tests/suites/handover: so many crashes, as many
// upgrades, so many files. HBMFS_HANDOVER_PAUSE is how many milliseconds a daemon serves at most (150), HBMFS_HANDOVER_BUSY how many processes
// do nothing but take time of the CPUs.
func setting(t *testing.T, name string, usual int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// restOf is how long a reader rests between two reads. The soak has none.
func restOf(t *testing.T) time.Duration {
	t.Helper()
	return time.Duration(setting(t, "HBMFS_HANDOVER_REST_US", 10_000)) * time.Microsecond
}

// reader reads in one way until it is stopped, and compares all that it reads.
type reader struct {
	name string
	step func(r *rand.Rand) error // one read; an error has what was wrong

	mu    sync.Mutex
	took  []time.Duration
	wrong []error
}

// run rests between two reads, since some readers without a pause take all CPUs from what they wait for.
func (r *reader) run(stop <-chan struct{}, seed uint64, rest time.Duration) {
	debug.SetPanicOnFault(true) // SIGBUS becomes a panic of this goroutine
	random := rand.New(rand.NewPCG(seed, 1))
	for {
		select {
		case <-stop:
			return
		default:
		}
		began := time.Now()
		err := func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("SIGBUS: %v", p)
				}
			}()
			return r.step(random)
		}()
		r.mu.Lock()
		r.took = append(r.took, time.Since(began))
		if err != nil && len(r.wrong) < 10 {
			r.wrong = append(r.wrong, err)
		}
		r.mu.Unlock()
		time.Sleep(rest)
	}
}

// worst returns the reads, the usual time of one, and the longest.
func (r *reader) worst() (n int, usual, longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.took)
	if n = len(r.took); n == 0 {
		return 0, 0, 0
	}
	return n, r.took[n/2], r.took[n-1]
}

func equal(got, want []byte, what string, off int64) error {
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s at %d: wrong bytes", what, off)
	}
	return nil
}

// dropped has the kernel forget the pages of a file, so that the next read asks for them.
func dropped(f *os.File) { _ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) } // advice

// localReaders are readers of a mount of shards of equal size, and of its views. stream is what the view has.
func localReaders(t *testing.T, m *mounted, source string, files int, stream []byte) []*reader {
	t.Helper()
	name := func(r *rand.Rand) string { return fmt.Sprintf("shard_%06d.bin", r.IntN(files)) }
	want := func(n string) []byte {
		b, err := os.ReadFile(filepath.Join(source, n))
		must(t, err)
		return b
	}
	openFile := func(path string, flags int) *os.File {
		f, err := os.OpenFile(path, os.O_RDONLY|flags, 0)
		must(t, err)
		t.Cleanup(func() { must(t, f.Close()) })
		return f
	}
	mapped := func(path string) []byte {
		p, err := mounttest.MapFile(path)
		must(t, err)
		t.Cleanup(func() { must(t, unix.Munmap(p)) })
		return p
	}
	view := m.Path(".hbmfs", "views", "tokens.bin")
	first, firstBytes := openFile(m.Path("shard_000000.bin"), 0), want("shard_000000.bin")
	firstMapped := mapped(m.Path("shard_000000.bin"))
	viewFile, viewDirect, viewMapped := openFile(view, 0), openFile(view, unix.O_DIRECT), mapped(view)
	viewFile2 := openFile(view, 0)
	const most = 64 << 10
	span := func(r *rand.Rand, size int) (off, n int) {
		off = r.IntN(size)
		return off, min(1+r.IntN(most), size-off)
	}
	pread := func(f *os.File, of []byte, drop *os.File, what string) func(r *rand.Rand) error {
		return func(r *rand.Rand) error {
			off, n := span(r, len(of))
			if drop != nil {
				dropped(drop)
			}
			p := make([]byte, n)
			if k, err := f.ReadAt(p, int64(off)); err != nil && (!errors.Is(err, io.EOF) || k != n) {
				return err
			}
			return equal(p, of[off:off+n], what, int64(off))
		}
	}
	fault := func(p, of []byte, drop *os.File, what string) func(r *rand.Rand) error {
		return func(r *rand.Rand) error {
			if drop != nil {
				_ = unix.Madvise(p, unix.MADV_DONTNEED) // advice
				dropped(drop)
			}
			off, n := span(r, len(of))
			return equal(p[off:off+n], of[off:off+n], what, int64(off))
		}
	}
	return []*reader{
		{name: "read whole files", step: func(r *rand.Rand) error {
			n := name(r)
			got, err := os.ReadFile(m.Path(n))
			if err != nil {
				return err
			}
			return equal(got, want(n), n, 0)
		}},
		{name: "pread", step: pread(first, firstBytes, first, "a file")},
		{name: "faults of a file", step: fault(firstMapped, firstBytes, first, "a mapping")},
		{name: "pread of a view", step: pread(viewFile, stream, viewFile, "a view")},
		{name: "faults of a view", step: fault(viewMapped, stream, viewFile2, "a mapped view")},
		{name: "view with O_DIRECT", step: func(r *rand.Rand) error {
			const sector = 4096
			off := r.IntN(len(stream)) &^ (sector - 1)
			buf := make([]byte, 17*sector)
			p := buf[sector-int(uintptr(unsafe.Pointer(&buf[0]))%sector):][:16*sector]
			n, err := viewDirect.ReadAt(p, int64(off))
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return equal(p[:n], stream[off:min(off+len(p), len(stream))], "O_DIRECT", int64(off))
		}},
		{name: "open of a view", step: func(r *rand.Rand) error {
			f, err := os.Open(view)
			if err != nil {
				return err
			}
			return errors.Join(pread(f, stream, f, "a view")(r), f.Close())
		}},
		{name: "status", step: func(*rand.Rand) error {
			text, err := os.ReadFile(m.Path(".hbmfs", "status"))
			if err == nil && !json.Valid(text) {
				err = fmt.Errorf("%d bytes that are no JSON", len(text))
			}
			return err
		}},
		{name: "names", step: func(r *rand.Rand) error {
			if _, err := os.Stat(m.Path("absent" + strconv.Itoa(r.IntN(1<<30)))); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("an absent file: %w", err)
			}
			found, err := os.ReadDir(m.Path(".hbmfs", "views"))
			if err == nil && len(found) == 0 {
				err = errors.New("the views have gone")
			}
			return err
		}},
		{name: "extents", step: func(r *rand.Rand) error {
			off, n := span(r, len(stream))
			sum := int64(0)
			for b, err := range control.Batches(viewFile, int64(off), int64(n), true) {
				if err != nil {
					return err
				}
				for _, e := range b.Extents {
					sum += e.Length * e.Count
				}
			}
			if sum < int64(n) {
				return fmt.Errorf("extents of %d bytes of %d", sum, n)
			}
			return nil
		}},
		pastFUSE(t, m, files, want),
	}
}

// pastFUSE is a reader past FUSE. Its connection ends with a daemon; it makes another.
func pastFUSE(t *testing.T, m *mounted, files int, want func(string) []byte) *reader {
	t.Helper()
	r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Descriptors: 8})
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return &reader{name: "past FUSE", step: func(random *rand.Rand) error {
		n := fmt.Sprintf("shard_%06d.bin", random.IntN(files))
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		f, err := r.Open(ctx, m.Path(n))
		if err != nil {
			return err
		}
		v, err := f.Read(ctx, 0, f.Size())
		if err != nil {
			return errors.Join(err, f.Close())
		}
		got := make([]byte, v.Len())
		err = v.CopyTo(ctx, got, 0)
		v.Release()
		return errors.Join(err, equal(got, want(n), n, 0), f.Close())
	}}
}

// remoteReader reads ranges of an object of a server through a mount with a small cache, cold and warm.
func remoteReader(t *testing.T) (*mounted, *reader) {
	t.Helper()
	source, of := suite.NewDir(t), make([]byte, 24<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(of) // never fails; a call for each byte takes long with the race detector
	must(t, os.WriteFile(filepath.Join(source, "far.bin"), of, 0o644))
	server := httptest.NewServer(http.FileServer(http.Dir(source)))
	t.Cleanup(server.Close)
	m := mount(t, server.URL+"/far.bin", "--cache-dir", suite.NewDir(t), "--cache-segment", "1MiB", "--cache-size", "8MiB", "--cache-min-free=1MiB")
	return m, &reader{name: "remote", step: func(r *rand.Rand) error {
		f, err := os.Open(m.Path("far.bin"))
		if err != nil {
			return err
		}
		dropped(f)
		off := r.IntN(len(of))
		p := make([]byte, min(64<<10, len(of)-off))
		_, err = f.ReadAt(p, int64(off))
		return errors.Join(err, equal(p, of[off:off+len(p)], "a remote file", int64(off)), f.Close())
	}}
}

func (m *mounted) upgrade(t testing.TB) {
	t.Helper()
	if r := run(t, "upgrade", m.Point); r.Code != 0 {
		t.Errorf("upgrade: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// Readers of every kind see no error, no wrong byte and no SIGBUS while daemons crash and are upgraded at random moments.
func TestReadersSeeNoHandover(t *testing.T) {
	blackbox.NeedRoot(t)
	rounds, files := setting(t, "HBMFS_HANDOVERS", 6), setting(t, "HBMFS_HANDOVER_FILES", 200)
	source, stream := mounttest.ShardedTokens(t, suite, files, max(1000, 4_000_000/files))
	megatron := megatronShards(t, filepath.Join(source, "mg"))
	m := mount(t, source)
	m.NeedHandover(t)
	remote, far := remoteReader(t)
	readers := append(localReaders(t, m, source, files, stream), far)
	if r := ringReader(t, m.Path(".hbmfs", "views", "tokens.bin"), stream); r != nil {
		readers = append(readers, r)
	}
	trainers := loaders(t, m.Path(".hbmfs", "views"), stream, megatron)
	for range setting(t, "HBMFS_HANDOVER_BUSY", 0) {
		busy := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		busy.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		must(t, busy.Start())
		t.Cleanup(func() { _ = busy.Wait() }) // it is killed by the end of the context
	}
	pause, rest := setting(t, "HBMFS_HANDOVER_PAUSE", 150), restOf(t)
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i, r := range readers {
		running.Go(func() { r.run(stop, uint64(i), rest) })
	}
	random := rand.New(rand.NewPCG(7, 7))
	var still []float64
	var answered []time.Duration // after a crash, by the next daemon
	for range rounds {
		for how, goes := range []func(*mounted, testing.TB){(*mounted).Crash, (*mounted).upgrade} {
			for _, of := range []*mounted{m, remote} {
				time.Sleep(time.Duration(random.IntN(pause)) * time.Millisecond)
				goes(of, t)
				began := time.Now()
				if _, err := os.Stat(of.Path("absent" + strconv.Itoa(random.IntN(1<<30)))); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("a name that is absent: %v", err)
				}
				if how == 0 { // an upgrade has waited for the next daemon
					answered = append(answered, time.Since(began))
				}
			}
			still = append(still, m.Status(t).Handover.LastStandstill, remote.Status(t).Handover.LastStandstill)
		}
	}
	time.Sleep(100 * time.Millisecond)
	close(stop)
	running.Wait()
	for _, r := range readers {
		n, usual, longest := r.worst()
		t.Logf("%-20s %7d reads, usually %9v, longest %9v, %d wrong", r.name, n, usual.Round(time.Microsecond), longest.Round(time.Microsecond), len(r.wrong))
		for _, err := range r.wrong {
			t.Errorf("%s: %v", r.name, err)
		}
		if n == 0 {
			t.Errorf("%s: nothing was read", r.name)
		}
	}
	for _, l := range trainers {
		n, usual, longest, wrong := l.stop()
		t.Logf("%-20s %7d reads, usually %9v, longest %9v, %d wrong", l.kind, n, usual.Round(time.Microsecond), longest.Round(time.Microsecond), len(wrong))
		for _, text := range wrong {
			t.Errorf("%s: %s", l.kind, text)
		}
		if n == 0 {
			t.Errorf("%s: nothing was read", l.kind)
		}
	}
	slices.Sort(still)
	slices.Sort(answered)
	t.Logf("a question after a crash was answered after %v in the middle, %v at most", answered[len(answered)/2], answered[len(answered)-1])
	t.Logf("%d hand-overs; readers waited %.1f ms in the middle, %.1f ms at most", len(still), 1000*still[len(still)/2], 1000*still[len(still)-1])
	for _, of := range []*mounted{m, remote} {
		s := of.Status(t)
		if of.PID = s.PID; s.Handover.Count != int64(2*rounds) || s.Handover.Crashes != int64(rounds) {
			t.Errorf("the status has %d hand-overs, %d after a crash, want %d and %d", s.Handover.Count, s.Handover.Crashes, 2*rounds, rounds)
		}
	}
}

// Every format's files and views are the same in the next daemon: their bytes, times and inode numbers.
func TestFormatsOutliveADaemon(t *testing.T) {
	blackbox.NeedRoot(t)
	m := mount(t, mounttest.Testdata, "--cache-dir", suite.NewDir(t), "--cache-min-free=1MiB", "--show-views")
	m.NeedHandover(t)
	sums := func() map[string]string {
		all := map[string]string{}
		must(t, filepath.WalkDir(m.Point, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || filepath.Dir(path) == m.Path(".hbmfs") { // what differs by itself
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			dropped(f)
			content, err := io.ReadAll(f)
			info, statErr := f.Stat()
			all[path] = fmt.Sprintf("%s %v %v", mounttest.HexSum(content), info.ModTime(), info.Sys().(*syscall.Stat_t).Ino)
			return errors.Join(err, statErr, f.Close())
		}))
		return all
	}
	before := sums()
	for name := range mounttest.Goldens(t) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(before)), func(path string) bool { return strings.HasPrefix(path, m.Path(name)+"/") }) {
			t.Errorf("nothing of %s was read", name)
		}
	}
	for life, goes := range []func(testing.TB){m.Crash, m.upgrade, m.Crash} {
		goes(t)
		after := sums()
		for path, sum := range before {
			if after[path] != sum {
				t.Errorf("life %d: %s is %s, was %s", life, path, after[path], sum)
			}
		}
		if len(after) != len(before) {
			t.Errorf("life %d: %d files, there were %d", life, len(after), len(before))
		}
	}
	m.PID = m.Status(t).PID
}
