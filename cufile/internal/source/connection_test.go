package source

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/control"
)

// TestNextDaemonIsToldOfNoEarlierLease closes a file that the daemon before has lent, and one that the next daemon has lent.
func TestNextDaemonIsToldOfNoEarlierLease(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	must(os.Mkdir(filepath.Join(root, ".hbmfs"), 0o755))
	l, err := net.Listen("unixpacket", filepath.Join(root, ".hbmfs", "control"))
	must(err)
	defer func() { _ = l.Close() }()
	epoch, released := control.Epoch{1}, make(chan []uint64, 2)
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			b := make([]byte, control.MaxFrame)
			for n, err := c.Read(b); err == nil; n, err = c.Read(b) {
				h, payload, _ := control.ParseFrame(b[:n])
				switch h.Type {
				case control.TypeRelease:
					objects, _ := control.ParseRelease(payload)
					released <- objects
				case control.TypeHello:
					welcome := control.Welcome{Version: control.Version, Epoch: epoch}
					_, _ = c.Write(control.AppendFrame(nil, control.Header{Version: control.Version, Type: control.TypeWelcome, ID: h.ID}, welcome.AppendTo))
				default: // the daemon ends
					_ = c.Close()
				}
			}
			_ = c.Close()
		}
	}()
	o := &Opener{mounts: map[control.Epoch]*mount{}}
	m, err := o.mount(t.Context(), root, epoch)
	must(err)
	former := m.client()
	if _, err := former.Readers(t.Context()); err == nil || !former.Gone() {
		t.Fatalf("the first daemon has not gone: %v", err)
	}
	next, err := m.connect(t.Context(), root)
	must(err)
	for i, lender := range []*control.Client{former, next} {
		b := &Backing{Object: uint64(i)}
		f := &mountedFile{mount: m, lent: map[*Backing]*control.Client{b: lender}}
		f.Release(t.Context(), []*Backing{b})
	}
	must(m.release())
	if objects := <-released; !slices.Equal(objects, []uint64{1}) {
		t.Errorf("the next daemon is told that objects %v were closed, want 1, which it lent", objects)
	}
}

// A request of another mount may ask notices that were closed meanwhile. Then the daemon is asked nothing.
func TestClosedNoticesAskNobody(t *testing.T) {
	n := &notices{watch: newWatch(nil)}
	n.page.Store(&page{&control.Counter{}})
	n.page.Load().counter.Changes.Store(1)
	n.close()
	n.ask(t.Context())
	n.gone.Wait()
}
