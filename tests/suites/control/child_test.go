package control_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// childVerb in the environment makes this program do one thing and end, for acts that need another user, or may die.
const childVerb = "HBMFS_TEST_CHILD"

// runChild prints what came of it, or the name of the errno.
func runChild(verb string, args []string) (code int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	verbs := map[string]func(context.Context, []string) (string, error){
		"lookup": childLookup, "redeem": childRedeem, "few": childFew, "steps": childSteps, "elsewhere": childElsewhere, "table": childTable, "greedy": childGreedy, "read": func(_ context.Context, args []string) (string, error) { return said(readOne(args[0])), nil }, "modest": childModest, "drops": childDrops, "orphan": childOrphan, "becomes": childBecomes, "inherits": childInherits, "changes": childChanges,
	}
	said, err := verbs[verb](ctx, args)
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		said = unix.ErrnoName(errno)
	case err != nil:
		said = err.Error()
	}
	fmt.Println(said)
	return 0
}

// childLookup (MOUNT NAME) reads a file through LOOKUP.
func childLookup(ctx context.Context, args []string) (string, error) {
	c, err := control.Dial(ctx, args[0], "child")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // it ends with this process
	for f, err := range c.Lookup(ctx, args[1:]) {
		if err != nil {
			return "", err
		}
		p := make([]byte, 100)
		n, err := f.ReadAt(p, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		return string(p[:n]), nil
	}
	return "", errors.New("no answer")
}

// childRedeem (MOUNT TICKET OBJECT) redeems a ticket that it was told.
func childRedeem(ctx context.Context, args []string) (string, error) {
	c, err := control.Dial(ctx, args[0], "child")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // it ends with this process
	var t control.Ticket
	var object uint64
	if _, err := hex.Decode(t[:], []byte(args[1])); err != nil {
		return "", err
	}
	if _, err := fmt.Sscan(args[2], &object); err != nil {
		return "", err
	}
	_, err = c.Redeem(ctx, t, []uint64{object})
	return "redeemed", err
}

// childFew (MOUNT NAME...) looks all names up with room for sixteen descriptors, and then the first two.
func childFew(ctx context.Context, args []string) (string, error) {
	c, err := control.Dial(ctx, args[0], "child")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // it ends with this process
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 16, Max: 16}); err != nil {
		return "", err
	}
	for _, err := range c.Lookup(ctx, args[1:]) {
		if !errors.Is(err, control.ErrTooManyFiles) {
			return fmt.Sprintf("with 16 descriptors: %v", err), nil
		}
		break
	}
	for f, err := range c.Lookup(ctx, args[1:3]) {
		if err != nil {
			return "", err
		}
		if n, err := f.ReadAt(make([]byte, 1), 0); n != 1 {
			return "", err
		}
	}
	return "too many, then well", nil
}

// childSteps (MOUNT NAME STEP) goes so far in the protocol, says so, and waits to be killed.
func childSteps(ctx context.Context, args []string) (string, error) {
	f, err := os.Open(filepath.Join(args[0], args[1]))
	if err != nil {
		return "", err
	}
	var c *control.Client
	var raw net.Conn
	var batch control.Batch
	steps := []func() error{
		func() (err error) {
			raw, err = net.Dial("unixpacket", filepath.Join(args[0], ".hbmfs", "control"))
			return err
		},
		func() (err error) { c, err = control.Dial(ctx, args[0], "killed"); return err },
		func() error {
			for b, err := range control.Batches(f, 0, math.MaxInt64, true) {
				batch = b
				return err
			}
			return nil
		},
		func() error { // half way: HELLO and LOOKUP are sent, nothing is read
			_, err := raw.Write(helloFrame())
			_, err2 := raw.Write(frame(control.TypeLookup, 2, (&control.Lookup{Flags: control.LookupFDs, Paths: args[1:2]}).AppendTo))
			return errors.Join(err, err2)
		},
		func() error { _, err := c.Redeem(ctx, batch.Ticket, batch.Objects()); return err },
		func() error {
			for _, err := range c.Lookup(ctx, args[1:2]) {
				return err
			}
			return nil
		},
	}
	var last int
	if _, err := fmt.Sscan(args[2], &last); err != nil {
		return "", err
	}
	for _, step := range steps[:last+1] {
		if err := step(); err != nil {
			return "", err
		}
	}
	fmt.Println("here")
	time.Sleep(patience)
	return "", errors.New("nobody came")
}

// childElsewhere (FILE SOURCE) reads a file by extents, and tries to write to what it got. SOURCE must not be visible.
func childElsewhere(ctx context.Context, args []string) (string, error) {
	if names, err := os.ReadDir(args[1]); err != nil || len(names) > 0 {
		return fmt.Sprintf("the source can be seen: %d files, %v", len(names), err), nil
	}
	f, err := os.Open(args[0])
	if err != nil {
		return "", err
	}
	c, err := control.Dial(ctx, args[0], "elsewhere")
	if err != nil {
		return "", err
	}
	var said []string
	for b, err := range control.Batches(f, 0, math.MaxInt64, true) {
		if err != nil {
			return "", err
		}
		files, err := c.Redeem(ctx, b.Ticket, b.Objects())
		if err != nil {
			return "", err
		}
		e := b.Extents[0]
		p := make([]byte, e.Length)
		if _, err := files[0].File.ReadAt(p, e.Offset); err != nil {
			return "", err
		}
		said = append(said, fmt.Sprintf("%x", sha256.Sum256(p)))
		fd := int(files[0].File.Fd())
		again := fmt.Sprintf("/proc/self/fd/%d", fd)
		_, write := unix.Pwrite(fd, p[:1], 0)
		_, reopen := unix.Open(again, unix.O_RDWR, 0)
		for _, err := range []error{write, unix.Ftruncate(fd, 0), reopen, unix.Truncate(again, 0)} {
			var errno syscall.Errno
			_ = errors.As(err, &errno) // 0 is no errno that a test expects
			said = append(said, unix.ErrnoName(errno))
		}
	}
	return strings.Join(said, " "), c.Close()
}

// childCommand is this program, run again for one thing.
func childCommand(t testing.TB, ordinary bool, verb string, args ...string) *exec.Cmd {
	// Through /proc, since an ordinary user cannot reach where go test builds.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), childVerb+"="+verb)
	cmd.Dir = "/"
	if ordinary {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return cmd
}

// child returns what such a program said.
func child(t testing.TB, ordinary bool, verb string, args ...string) string {
	t.Helper()
	out, err := childCommand(t, ordinary, verb, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("run a child: %v: %s", err, out)
	}
	return string(bytes.TrimSpace(out))
}
