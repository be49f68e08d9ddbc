package credentials_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestReadersSeeNoHandover reads a mount of each origin at random, always from the server, while its daemon is killed, killed again and upgraded,
// and its credentials end before, between and after. No read fails, and none has wrong bytes.
func TestReadersSeeNoHandover(t *testing.T) {
	blackbox.NeedRoot(t)
	for kind := range places() {
		t.Run(kind, func(t *testing.T) {
			s := newServer(t, kind)
			m := suite.MountOn(t, s.place.source, suite.NewDir(t))
			m.NeedHandover(t)
			var reads atomic.Int64
			var running sync.WaitGroup
			over := make(chan struct{})
			for i, name := range []string{"first.bin", "second.bin"} {
				running.Go(func() { // ends with over
					if err := s.readAtRandom(m.Path(name), name, uint64(i), &reads, over); err != nil {
						t.Error(err)
					}
				})
			}
			more := func() {
				t.Helper()
				before := reads.Load()
				if !blackbox.Within(blackbox.Patience, func() bool { return reads.Load() >= before+20 }) {
					t.Errorf("%d reads in a minute\nlog:\n%s", reads.Load()-before, m.LogText(t))
				}
			}
			more()
			for _, kill := range []bool{true, true, false} {
				s.renew()
				if kill {
					m.Replace(t, blackbox.Patience)
				} else if r := suite.Run(t, "upgrade", m.Point); r.Code != 0 {
					t.Errorf("upgrade ends with %d: %s", r.Code, r.Stderr)
				}
				more()
				s.renew()
				more()
			}
			close(over)
			running.Wait()
			m.PID = m.Status(t).PID
		})
	}
}

// readAtRandom reads pieces of a file past the page cache until over is closed.
func (s *server) readAtRandom(path, name string, seed uint64, reads *atomic.Int64, over <-chan struct{}) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	random, p := rand.New(rand.NewPCG(seed, 1)), make([]byte, 4000)
	for {
		select {
		case <-over:
			return nil
		default:
		}
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return err
		}
		off := random.IntN(size - len(p))
		if _, err := f.ReadAt(p, int64(off)); err != nil {
			return err
		}
		if !bytes.Equal(p, s.files[name][off:off+len(p)]) {
			return fmt.Errorf("wrong bytes of %s at %d", name, off)
		}
		reads.Add(1)
	}
}
