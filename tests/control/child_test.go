package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// childVerb in the environment makes this program do one thing and end: what must happen as another user, or may die.
const childVerb = "HBMFS_TEST_CHILD"

// runChild prints what came of it, or the name of the errno.
func runChild(verb string, args []string) (code int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	verbs := map[string]func(context.Context, []string) (string, error){"lookup": childLookup}
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
		if !errors.Is(err, io.EOF) {
			return "", err
		}
		return string(p[:n]), nil
	}
	return "", errors.New("no answer")
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
