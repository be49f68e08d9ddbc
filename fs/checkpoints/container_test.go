package checkpoints

import (
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// TestNobodyCanTell: a process that the daemon does not see may change nothing. The errno says so, and not why /proc does not show the process.
func TestNobodyCanTell(t *testing.T) {
	k := newKernel(t)
	k.draft("step")
	k.v.containers.on = true
	in := fuse.IoctlIn{InHeader: k.header(k.v.draftShown("step.tmp").root.ino | outer), Cmd: control.DraftCommand}
	in.Pid = 0 // of a PID namespace that is hidden from the daemon
	out := make([]byte, control.DraftSize)
	k.want("hbmfs publish", k.Ioctl(nil, &in, control.AppendDraftRequest(nil, control.DraftStart), &fuse.IoctlOut{}, out), unix.EPERM)
	if refused := k.v.Status().Refused; len(refused) != 1 || !strings.Contains(refused[0], "nobody can tell whether process 0 may write here") {
		t.Errorf("the status says %q", refused)
	}
	if _, err := k.v.containers.of(&fuse.InHeader{Caller: fuse.Caller{Pid: 1 << 30}}); errnoOf(err) != uint32(unix.EPERM) { // no process has this number
		t.Errorf("a draft of a process that has ended: %v", err)
	}
	k.v.containers.device = func() (device, error) { return device{}, unix.ENOENT }
	if err := k.v.mayWrite(1); errnoOf(err) != uint32(unix.EPERM) {
		t.Errorf("where the mount is not found: %v", err)
	}
}
