package handover_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// stalled is a remote source whose bytes wait, so that requests are being handled for as long as a test wants.
type stalled struct {
	*mounttest.Web
	*mounted
	mu    sync.Mutex
	asked map[string]bool // names of files that the daemon waits for, since forget
}

func mountStalled(t *testing.T) *stalled {
	t.Helper()
	blackbox.NeedRoot(t)
	s := &stalled{Web: mounttest.NewWeb(t), asked: map[string]bool{}}
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, q *http.Request) {
		if s.Gate.Load() != nil && q.Method == http.MethodGet {
			s.mu.Lock()
			s.asked[strings.TrimPrefix(q.URL.Path, "/")] = true
			s.mu.Unlock()
		}
		s.ServeHTTP(out, q)
	}))
	t.Cleanup(server.Close)
	s.mounted = mount(t, server.URL)
	s.NeedHandover(t)
	if !blackbox.Within(patience, func() bool { return !s.Status(t).Indexing }) {
		t.Fatal("the daemon does not recognize the dataset")
	}
	gate := make(chan struct{})
	s.Gate.Store(&gate)
	t.Cleanup(s.open) // before the mount ends
	return s
}

// open lets all bytes go.
func (s *stalled) open() {
	if gate := s.Gate.Swap(nil); gate != nil {
		close(*gate)
	}
}

// kill ends the daemon by a signal.
func (s *stalled) kill(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	s.mu.Lock()
	clear(s.asked)
	s.mu.Unlock()
	must(t, syscall.Kill(pid, signal))
}

// waitFor waits until a daemon handles reads of so many files.
func (s *stalled) waitFor(t *testing.T, files int) {
	t.Helper()
	if !blackbox.Within(patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.asked) >= files
	}) {
		t.Fatalf("no daemon reads %d files:\n%s", files, s.LogText(t))
	}
}

// readOne reads a page of a file by one request, and tells how that went.
func (s *stalled) readOne(name string) <-chan error {
	over := make(chan error, 1)
	go func() { // ends with the read
		const at, page = mounttest.Mebibyte / 2, 4096
		fd, err := unix.Open(s.Path(name), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err != nil {
			over <- err
			return
		}
		defer func() { _ = unix.Close(fd) }()
		room := make([]byte, 2*page)
		skip := -uintptr(unsafe.Pointer(&room[0])) & (page - 1)
		p := room[skip : skip+page]
		n, err := unix.Pread(fd, p, at)
		if err == nil && !bytes.Equal(p[:n], s.Files[name][at:at+page]) {
			err = errors.New("wrong bytes")
		}
		over <- err
	}()
	return over
}

// A request that was being handled when two daemons crashed gets EIO. Another that was there both times is served.
func TestRequestThatEndsDaemonsIsRefused(t *testing.T) {
	s := mountStalled(t)
	first, second := s.readOne("first.dat"), s.readOne("second.dat")
	s.waitFor(t, 2)
	for range 2 {
		s.kill(t, s.Status(t).PID, syscall.SIGSEGV) // a fatal error of the Go runtime
		s.waitFor(t, 1)
	}
	var err error
	rest := second
	select {
	case err = <-first:
	case err = <-second:
		rest = first
	case <-time.After(patience):
		t.Fatalf("no request is refused:\n%s", s.LogText(t))
	}
	if !errors.Is(err, unix.EIO) {
		t.Errorf("the request that ends daemons gets %v", err)
	}
	s.open()
	select {
	case err := <-rest:
		must(t, err)
	case <-time.After(patience):
		t.Fatal("the other request is not answered")
	}
	if log := s.LogText(t); !strings.Contains(log, "a request is refused with EIO") || !strings.Contains(log, "SIGSEGV") {
		t.Errorf("the log does not say it:\n%s", log)
	}
	must(t, os.Truncate(s.Log, 0)) // goroutines in the log of a mount are a failure, and these were wanted
}

// However often daemons are killed while they handle a slow read, it is answered.
func TestSlowReadBesideKills(t *testing.T) {
	s := mountStalled(t)
	read := s.readOne("first.dat")
	s.waitFor(t, 1)
	keeper := s.Status(t).Handover.PID
	for kill := range setting(t, "HBMFS_KILLS", 5) {
		began, pid := time.Now(), s.Status(t).PID
		const short, most = 1100 * time.Millisecond, 50 // the keeper gives a mount up whose daemons die within a second, a hundred in a row
		if kill%most == most-1 && !blackbox.Within(patience, func() bool { return time.Since(began) > short }) {
			t.Fatal("time stands still")
		}
		s.kill(t, pid, syscall.SIGKILL)
		s.waitFor(t, 1)
	}
	if handover.Dying(keeper) {
		t.Error("the keeper has died, too")
	}
	s.open()
	select {
	case err := <-read:
		must(t, err)
	case <-time.After(patience):
		t.Fatal("the read is not answered")
	}
	if text, err := os.ReadFile(s.Log); err != nil || bytes.Contains(text, []byte("refused with EIO")) {
		t.Errorf("a request was refused: %v\n%s", err, text)
	}
}
