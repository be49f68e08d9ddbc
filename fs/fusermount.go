package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// newServer mounts at point. Root does that itself; where it may not, and for ordinary users, fusermount3 does.
func (m *Mount) newServer(ctx context.Context, point string) (*fuse.Server, error) {
	opt := m.mountOptions()
	if os.Geteuid() == 0 {
		opt.DirectMountStrict = true // go-fuse would start fusermount3, too, and keep its words
		server, err := fuse.NewServer(m.guarded(), point, opt)
		if err == nil || !errors.Is(err, unix.EPERM) {
			return server, err
		}
		opt.DirectMountStrict = false
		direct := err
		defer func() { m.log.Debug("mounted by fusermount3", "reason", direct) }()
	}
	fd, err := fusermount(ctx, point, opt)
	if err != nil {
		return nil, err
	}
	return fuse.NewServer(m.guarded(), fmt.Sprintf("/dev/fd/%d", fd), opt) // a name that go-fuse takes for a mount that is made already
}

// fusermount has fusermount3 mount at point, and returns the descriptor of the connection to the kernel. An error quotes
// fusermount3, whose words go-fuse would leave on the daemon's standard error.
func fusermount(ctx context.Context, point string, opt *fuse.MountOptions) (fd int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make a socket for fusermount3: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "fusermount3"), os.NewFile(uintptr(pair[1]), "fusermount3")
	defer func() { _ = ours.Close() }() // the descriptor has come, or will not
	options := append([]string{"fsname=" + opt.FsName, "subtype=" + opt.Name, fmt.Sprintf("max_read=%d", opt.MaxWrite)}, opt.Options...)
	if opt.AllowOther {
		options = append(options, "allow_other")
	}
	for i, o := range options {
		options[i] = strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(o)
	}
	cmd := exec.CommandContext(ctx, "fusermount3", "-o", strings.Join(options, ","), "--", point)
	cmd.Env, cmd.ExtraFiles = []string{"_FUSE_COMMFD=3"}, []*os.File{theirs}
	said, err := cmd.CombinedOutput()
	_ = theirs.Close() // so that receive does not wait for a message that will not come
	if said = bytes.TrimSpace(said); err != nil && len(said) > 0 {
		return -1, errors.New(strings.ReplaceAll(string(said), "\n", "; "))
	}
	if err != nil {
		return -1, err
	}
	return receive(ours)
}

// receive takes the one descriptor that fusermount3 has sent.
func receive(from *os.File) (fd int, err error) {
	conn, err := net.FileConn(from)
	if err != nil {
		return -1, err
	}
	defer func() { _ = conn.Close() }() // a copy of from
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(make([]byte, 4), oob)
	if err != nil {
		return -1, fmt.Errorf("take the mount from fusermount3: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return -1, errors.Join(fmt.Errorf("take the mount from fusermount3: it sent %d messages with descriptors", len(messages)), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.Join(fmt.Errorf("take the mount from fusermount3: it sent %d descriptors", len(fds)), err)
	}
	return fds[0], nil
}
