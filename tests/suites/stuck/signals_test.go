package stuck_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// slow serves w, and waits before each answer, so that signals meet requests that wait.
func slow(t *testing.T, w *mounttest.Web, wait time.Duration) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, q *http.Request) {
		time.Sleep(wait)
		w.ServeHTTP(out, q)
	}))
	t.Cleanup(s.Close)
	return s
}

// goldenWeb serves a golden dataset.
func goldenWeb(t *testing.T, name string) *mounttest.Web {
	t.Helper()
	w := mounttest.NewWeb(t)
	w.Files = map[string][]byte{}
	dir := mounttest.Golden(t, name)
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if w.Files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// A signal that its process handles does not end a read, however the process reads. A regular file never answers EINTR:
// not to profilers, whose timer fires all the time, and not to io_uring's workers, which always have a signal pending.
func TestSignalsDoNotEndReads(t *testing.T) {
	w := mounttest.NewWeb(t)
	remote := mount(t, slow(t, w, 20*time.Millisecond).URL)
	source, stream := mounttest.ShardedTokens(t, suite, 3, 8_000_000)
	local := mount(t, source)
	for _, file := range []struct {
		path string
		want []byte
	}{{remote.Path("first.dat"), w.Files["first.dat"]}, {local.Path(".hbmfs", "views", "tokens.bin"), stream}} {
		for _, how := range []string{"direct", "uring", "mapped"} {
			t.Run(how+" "+filepath.Base(file.path), func(t *testing.T) {
				said, ok := mounttest.Child(t, false, "signalled", how, file.path)
				if strings.Contains(said, "io_uring_setup") && strings.Contains(said, "not permitted") {
					t.Skip(said)
				}
				if want := fmt.Sprintf("%x", sha256.Sum256(file.want)); !ok || !strings.Contains(said, want) {
					t.Errorf("reading under signals: %s", said)
				}
			})
		}
	}
}

// Nor do a debugger that looks at the reader, and a terminal that stops it and lets it go on.
func TestTracedAndStoppedReaders(t *testing.T) {
	w := mounttest.NewWeb(t)
	m := mount(t, slow(t, w, 20*time.Millisecond).URL)
	if !blackbox.Within(patience, func() bool { return !m.Status(t).Indexing }) {
		t.Error("formats are not recognized")
	}
	want := fmt.Sprintf("%x", sha256.Sum256(w.Files["first.dat"]))
	reader := func(command ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], "direct", m.Path("first.dat"))...)
		cmd.Env = append(os.Environ(), mounttest.ChildVerb+"=signalled")
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		return cmd, &said
	}
	self, err := os.Executable()
	must(t, err)
	t.Run("traced", func(t *testing.T) {
		strace, err := exec.LookPath("strace")
		if err != nil {
			t.Skip(err)
		}
		cmd, said := reader(strace, "-f", "-o", os.DevNull, self)
		if err := cmd.Run(); err != nil || !strings.Contains(said.String(), want) {
			t.Errorf("%v: %s", err, said)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		gate := make(chan struct{})
		before := w.Waits.Load()
		w.Gate.Store(&gate)
		cmd, said := reader(self)
		must(t, cmd.Start())
		if !blackbox.Within(patience, func() bool { return w.Waits.Load() > before }) {
			t.Error("nothing was asked for")
		}
		must(t, cmd.Process.Signal(syscall.SIGSTOP))
		time.Sleep(150 * time.Millisecond) // longer than between two looks of the daemon
		must(t, cmd.Process.Signal(syscall.SIGCONT))
		w.Gate.Store(nil)
		close(gate)
		if err := cmd.Wait(); err != nil || !strings.Contains(said.String(), want) {
			t.Errorf("%v: %s", err, said)
		}
	})
}

// Nor does it end what comes before a read: looking up a view, opening and listing it, each of which waits for a source.
func TestSignalsDoNotEndLookups(t *testing.T) {
	w := goldenWeb(t, "mds")
	for _, how := range []string{"stat", "open", "list"} {
		m := mount(t, slow(t, w, 50*time.Millisecond).URL)
		path := m.Path(".hbmfs", "views", "tokens.npy")
		if how == "list" {
			path = m.Path(".hbmfs", "views")
		}
		if said, ok := mounttest.Child(t, false, "signalled", how, path); !ok {
			t.Errorf("%s under signals: %s", how, said)
		}
	}
}

// A signal that ends its process ends it at once, although a request waits for a source that is stuck, and although a
// signal came before that did not end it.
func TestFatalSignalsEndStuckReaders(t *testing.T) {
	w := mounttest.NewWeb(t)
	m := mount(t, w.URL)
	gate := make(chan struct{})
	shards, index := goldenWeb(t, "mds"), goldenWeb(t, "mds") // of which the mount itself needs the index
	shards.Gate.Store(&gate)
	lazy := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, q *http.Request) {
		if strings.HasSuffix(q.URL.Path, ".json") {
			index.ServeHTTP(out, q)
			return
		}
		shards.ServeHTTP(out, q)
	}))
	t.Cleanup(lazy.Close)
	t.Cleanup(func() { close(gate) })
	views := mount(t, lazy.URL)
	defer func() { must(t, blackbox.Detach(views.Point)) }() // recognizing the dataset does not end while it is stuck
	if !blackbox.Within(patience, func() bool { return !m.Status(t).Indexing }) {
		t.Error("formats are not recognized")
	}
	w.Gate.Store(&gate)
	killed, fatal := []syscall.Signal{syscall.SIGKILL}, []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGQUIT}
	for _, reader := range []struct {
		what  string
		fatal []syscall.Signal
		args  []string
	}{
		{"a read", fatal, []string{"dd", "if=" + m.Path("first.dat"), "of=/dev/null", "bs=1M", "iflag=direct"}},
		// There the kernel waits for itself, and after another signal only SIGKILL ends that, as on any filesystem.
		{"a read by the page cache", killed, []string{"dd", "if=" + m.Path("second.dat"), "of=/dev/null", "bs=1M"}},
		{"a lookup", fatal, []string{"dd", "if=" + views.Path(".hbmfs", "views", "tokens.npy"), "of=/dev/null"}},
		{"a listing", fatal, []string{"ls", views.Path(".hbmfs", "views")}},
	} {
		for _, fatal := range reader.fatal {
			for _, before := range []syscall.Signal{0, syscall.SIGWINCH, syscall.SIGUSR1, syscall.SIGSTOP} {
				if before == syscall.SIGUSR1 && reader.args[0] != "dd" { // which handles it once it has begun to copy
					continue
				}
				t.Run(fmt.Sprintf("%s, %v after %v", reader.what, fatal, before), func(t *testing.T) {
					for tries := 1; ; tries++ { // the machine may be busy
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						err := endsAtOnce(t, exec.CommandContext(ctx, reader.args[0], reader.args[1:]...), before, fatal)
						if cancel(); err == nil {
							return
						}
						if tries == 3 {
							t.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// endsAtOnce starts a reader of a stuck source, and sends it one signal that does not end it and one that does.
func endsAtOnce(t *testing.T, cmd *exec.Cmd, before, fatal syscall.Signal) error {
	t.Helper()
	cmd.Dir = suite.Dir
	must(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }() // where it has not ended
	if !blackbox.Within(patience, func() bool { return mounttest.IsStuck(cmd.Process.Pid) }) {
		return errors.New("the reader does not wait for the source")
	}
	if before != 0 {
		must(t, cmd.Process.Signal(before))
		time.Sleep(150 * time.Millisecond) // longer than between two looks of the daemon
		if !mounttest.WaitsForFUSE(cmd.Process.Pid) {
			return fmt.Errorf("after %v the reader no longer waits", before)
		}
	}
	must(t, cmd.Process.Signal(fatal))
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(cmd.Process.Pid) }) { // the source stays stuck meanwhile
		return fmt.Errorf("%v later the reader is there", patience)
	}
	_ = cmd.Wait() // by the signal, which is its error
	if by := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); by != fatal {
		return fmt.Errorf("the reader ended by %v, want %v", by, fatal)
	}
	return nil
}

// A reader whose request the kernel gives up keeps the daemon no longer than any other, although a signal came before.
func TestForcedUnmountOfStuckReads(t *testing.T) {
	blackbox.NeedRoot(t)
	w := mounttest.NewWeb(t)
	m := mount(t, w.URL)
	if !blackbox.Within(patience, func() bool { return !m.Status(t).Indexing }) {
		t.Error("formats are not recognized")
	}
	gate := make(chan struct{})
	w.Gate.Store(&gate)
	t.Cleanup(func() { close(gate) })
	cmd := exec.CommandContext(t.Context(), "dd", "if="+m.Path("first.dat"), "of=/dev/null", "bs=1M", "iflag=direct")
	must(t, cmd.Start())
	if !blackbox.Within(patience, func() bool { return mounttest.IsStuck(cmd.Process.Pid) }) {
		t.Fatal("the reader does not wait for the source")
	}
	must(t, cmd.Process.Signal(syscall.SIGUSR1))
	time.Sleep(150 * time.Millisecond) // longer than between two looks of the daemon
	must(t, unix.Unmount(m.Point, unix.MNT_FORCE|unix.MNT_DETACH))
	if err := cmd.Wait(); err == nil {
		t.Error("the reader read what the source did not give")
	}
	m.End(t) // within less time than the daemon waits for its source
}

// signalled does one thing with a file while signals with a handler come all the time. It prints the SHA-256 of what it
// read. Calls are made without Go's own wrappers, which try again after EINTR.
func signalled(how, path string) error {
	runtime.LockOSThread()
	time.AfterFunc(patience, func() { fmt.Println("it does not end"); os.Exit(1) })
	defer disturb()()
	var content []byte
	var err error
	switch how {
	case "direct":
		content, err = mounttest.ReadPastCache(path)
	case "uring":
		content, err = readByRing(path)
	case "mapped":
		content, err = readMapped(path)
	case "stat":
		err = unix.Stat(path, &unix.Stat_t{})
	case "open", "list":
		var fd int
		if fd, err = unix.Open(path, unix.O_RDONLY, 0); err == nil && how == "list" {
			_, err = unix.Getdents(fd, make([]byte, 1<<16))
		}
	default:
		err = fmt.Errorf("unknown way %q", how)
	}
	if err == nil {
		fmt.Printf("%x\n", sha256.Sum256(content))
	}
	return err
}

// disturb sends the calling thread a signal twice a millisecond until it is told to stop. Go's runtime has a handler
// for SIGURG, with SA_RESTART.
func disturb() (stop func()) {
	var done atomic.Bool
	thread := unix.Gettid()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !done.Load() {
			_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG) // it is there as long as this runs
			time.Sleep(500 * time.Microsecond)
		}
	}()
	return func() {
		done.Store(true)
		<-ended
	}
}

// touched keeps the compiler from leaving reads of a mapping out.
var touched atomic.Int32

// readMapped touches each page of a mapping in an order that the kernel does not read ahead in.
func readMapped(path string) ([]byte, error) {
	data, err := mounttest.MapFile(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Madvise(data, unix.MADV_RANDOM); err != nil {
		return nil, err
	}
	for i := 0; i < len(data); i += max(os.Getpagesize(), len(data)/20) { // each is a request of one page
		touched.Store(int32(data[i]))
	}
	if err := unix.Madvise(data, unix.MADV_SEQUENTIAL); err != nil {
		return nil, err
	}
	content := bytes.Clone(data)
	return content, nil
}

// readByRing reads a file by the second of two io_urings, 32 pieces at a time.
func readByRing(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	const piece = 64 << 10
	pieces := int(st.Size+piece-1) / piece
	buf, err := unix.Mmap(-1, 0, pieces*piece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	var rings [2]*mounttest.Ring
	for i := range rings {
		if rings[i], err = mounttest.NewRing(); err != nil {
			return nil, err
		}
	}
	if _, err := rings[0].Read(fd, buf, piece, 0, 1); err != nil {
		return nil, err
	}
	failed := 0
	for first := 0; first < pieces; first += mounttest.RingEntries {
		wrong, err := rings[1].Read(fd, buf, piece, first, min(mounttest.RingEntries, pieces-first))
		if failed += wrong; err != nil {
			return nil, err
		}
	}
	if failed > 0 {
		return nil, errors.New(strconv.Itoa(failed) + " of " + strconv.Itoa(pieces) + " reads failed")
	}
	return buf[:st.Size], nil
}
