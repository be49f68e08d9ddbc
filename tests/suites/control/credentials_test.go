package control_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestCredentialsOfAConnection changes who is at the other end of one. It keeps the user and groups that it was made as,
// and has capabilities only as long as the process of root that made it has them.
func TestCredentialsOfAConnection(t *testing.T) {
	blackbox.NeedRoot(t)
	source := suite.NewDir(t)
	shard(t, filepath.Join(source, "root"), 0, 0, 0o600)
	shard(t, filepath.Join(source, "alice"), alice, alice, 0o600)
	m := mount(t, source)
	program := everybodysCopy(t)
	suid := everybodysCopy(t)
	must(t, os.Chmod(suid, os.ModeSetuid|0o755))
	for _, c := range []struct {
		verb string
		uid  uint32
		want string
	}{
		{"drops", 0, "as root ok ok, then ok EACCES"}, // a connection of root, of a process that became alice
		{"orphan", 0, "ok EACCES"},                    // of a process that has ended
		{"becomes", alice, "EACCES ok"},               // of alice, whose process became root by a program of root's
	} {
		cmd := exec.CommandContext(limited(t), program, m.Path(), suid)
		cmd.Env, cmd.Dir = append(os.Environ(), childVerb+"="+c.verb), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
			t.Errorf("%s: %s, %v, want %s", c.verb, got, err, c.want)
		}
	}
}

// TestRightsThatAreTakenAway changes the permissions of mounted files: what the source no longer grants is not to be
// opened any more.
func TestRightsThatAreTakenAway(t *testing.T) {
	blackbox.NeedRoot(t)
	source, secret := suite.NewDir(t), strings.Repeat("secret", 16)+"1234"
	names := []string{"mode", "owner", "more"}
	for _, name := range names {
		must(t, os.WriteFile(filepath.Join(source, name), []byte(secret), 0o644))
	}
	m := mount(t, source)
	for _, name := range names {
		if got := child(t, true, "lookup", m.Path(), name); got != secret {
			t.Errorf("%s before: %s", name, got)
		}
	}
	must(t, os.Chmod(filepath.Join(source, "mode"), 0o600))
	must(t, os.Chown(filepath.Join(source, "owner"), alice, alice))
	must(t, os.Chmod(filepath.Join(source, "more"), 0o666))
	for name, want := range map[string]string{"mode": "EACCES", "owner": "EACCES", "more": secret} {
		if got := child(t, true, "lookup", m.Path(), name); got != want {
			t.Errorf("LOOKUP of %s: %s, want %s", name, got, want)
		}
		if want == secret {
			want = "ok"
		}
		if got := child(t, true, "read", m.Path(name)); got != want {
			t.Errorf("open of %s: %s, want %s", name, got, want)
		}
		if got := said(readOne(m.Path(name))); got != "ok" {
			t.Errorf("root, whom the source grants it, opens %s: %s", name, got)
		}
	}
}

// both looks up the file of root and that of alice on a connection.
func both(c *net.UnixConn) (string, error) {
	ask := frame(control.TypeLookup, 7, (&control.Lookup{Paths: []string{"root", "alice"}}).AppendTo)
	if _, err := c.Write(ask); err != nil {
		return "", err
	}
	p := make([]byte, control.MaxFrame)
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	n, err := c.Read(p)
	if err != nil {
		return "", err
	}
	_, payload, err := control.ParseFrame(p[:n])
	if err != nil {
		return "", err
	}
	files, err := control.ParseFiles(payload)
	if err != nil || len(files.Files) != 2 {
		return "", fmt.Errorf("%d files: %w", len(files.Files), err)
	}
	var came []string
	for _, f := range files.Files {
		if f.Errno == 0 {
			came = append(came, "ok")
		} else {
			came = append(came, said(f.Errno))
		}
	}
	return strings.Join(came, " "), nil
}

// greet connects to a mount and says HELLO.
func greet(mount string) (*net.UnixConn, error) {
	c, err := net.Dial("unixpacket", filepath.Join(mount, ".hbmfs/control"))
	if err != nil {
		return nil, err
	}
	if _, err = c.Write(helloFrame()); err == nil {
		_, err = c.Read(make([]byte, control.MaxFrame))
	}
	return c.(*net.UnixConn), err
}

// childDrops (MOUNT) connects as root and becomes alice.
func childDrops(_ context.Context, args []string) (string, error) {
	c, err := greet(args[0])
	if err != nil {
		return "", err
	}
	before, err := both(c)
	if err = errors.Join(err, syscall.Setgid(alice), syscall.Setuid(alice)); err != nil {
		return "", err
	}
	after, err := both(c)
	return fmt.Sprintf("as root %s, then %s", before, after), err
}

// childOrphan (MOUNT) hands its connection to another process, and ends.
func childOrphan(_ context.Context, args []string) (string, error) {
	c, err := greet(args[0])
	if err != nil {
		return "", err
	}
	f, err := c.File()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{f}, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), childVerb+"=inherits")
	if _, err := cmd.StdinPipe(); err != nil { // ends with this process
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	os.Exit(0) // without a word
	return "", nil
}

// childBecomes (MOUNT PROGRAM) becomes root by a program of root's, which has the connection.
func childBecomes(_ context.Context, args []string) (string, error) {
	c, err := greet(args[0])
	if err != nil {
		return "", err
	}
	f, err := c.File()
	if err != nil {
		return "", err
	}
	if err := syscall.Dup3(int(f.Fd()), 3, 0); err != nil {
		return "", err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return "", err
	}
	if err := syscall.Dup3(int(null.Fd()), 0, 0); err != nil {
		return "", err
	}
	if err := os.Setenv(childVerb, "inherits"); err != nil {
		return "", err
	}
	return "", syscall.Exec(args[1], args[1:2], os.Environ())
}

// childInherits uses the connection that is its descriptor 3, once its standard input has ended.
func childInherits(context.Context, []string) (string, error) {
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // its end is what is waited for
	time.Sleep(100 * time.Millisecond)          // each of them is waited for, and gone
	f := os.NewFile(3, "connection")
	c, err := net.FileConn(f)
	if err != nil {
		return "", err
	}
	return both(c.(*net.UnixConn))
}
