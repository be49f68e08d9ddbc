package control

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// connectedPeer is this process at the other end of a connection.
func connectedPeer(t *testing.T) *peer {
	t.Helper()
	l, err := net.Listen("unixpacket", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unixpacket", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = server.Close(); _ = l.Close() }) // the test is over
	p, err := peerOf(server.(*net.UnixConn))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPeers(t *testing.T) {
	p := connectedPeer(t)
	if p.uid != uint32(os.Geteuid()) || p.gid != uint32(os.Getegid()) {
		t.Errorf("this process is %d:%d", p.uid, p.gid)
	}
	mayReadTheirs := func() bool { return p.May(p.uid+1, p.gid+1, 0o440, 4) }
	if os.Geteuid() != 0 {
		if p.process != nil || mayReadTheirs() {
			t.Error("who is not root gets by modes alone")
		}
		return
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	if has := sets[0].Effective&(1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_DAC_READ_SEARCH) != 0; mayReadTheirs() != has {
		t.Errorf("root with capabilities %x: %v", sets[0].Effective, !has)
	}
	p.process.pid = 0 // of a PID namespace that is not seen from here
	if p.process.passes != mayReadTheirs() {
		t.Error("an answer does not hold until it is forgotten")
	}
	p.process.forget()
	if mayReadTheirs() {
		t.Error("a process that is not seen has capabilities")
	}
}
