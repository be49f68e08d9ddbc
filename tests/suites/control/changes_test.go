package control_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// childChanges (MOUNT N) waits until it has heard of N changes, and says which, and how many were withheld. It tries to write to the counter.
func childChanges(ctx context.Context, args []string) (string, error) {
	c, err := control.Dial(ctx, args[0], "child")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // it ends with this process
	_, file, err := c.Changes(ctx, control.AskChanges{Counter: true})
	if err != nil {
		return "", err
	}
	counter, _, err := control.MapCounter(int(file.Fd()), false)
	if err != nil {
		return "", err
	}
	_, _, written := control.MapCounter(int(file.Fd()), true)
	_, reopened := unix.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), unix.O_RDWR, 0)
	if os.Geteuid() != 0 && (!errors.Is(written, syscall.EACCES) || !errors.Is(reopened, syscall.EACCES)) {
		return "", fmt.Errorf("the counter may be written to: %w, %w", written, reopened)
	}
	said := ""
	if !within(func() bool {
		before := counter.Changes.Load()
		m, _, failed := c.Changes(ctx, control.AskChanges{})
		said, err = "", failed
		for _, change := range m.List {
			said += fmt.Sprintf("%s was %s, ", change.Name, change.Kind)
		}
		said += fmt.Sprintf("%d withheld", m.Withheld)
		return err != nil || fmt.Sprint(len(m.List)+int(m.Withheld)) == args[1] && before > 0 && counter.Looked.Load() > 0
	}) {
		return "", fmt.Errorf("heard in the end: %s, the counter is %d", said, counter.Changes.Load())
	}
	return said, err
}

// TestWhoLearnsOfChanges has files of root and of everybody change. Each user hears of those that it may read, and cannot write to the counter.
func TestWhoLearnsOfChanges(t *testing.T) {
	source := suite.NewDir(t)
	for name, mode := range map[string]os.FileMode{"everybody's": 0o644, "root's": 0o600, "closed/everybody's": 0o644} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(source, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(source, name), make([]byte, 100), mode))
	}
	must(t, os.Chmod(source, 0o755))
	m := mount(t, source)
	c, err := control.Dial(t.Context(), m.Path(), "test")
	must(t, err)
	for f, err := range c.Lookup(t.Context(), []string{"everybody's", "root's", "closed/everybody's"}) { // nobody hears of files that nobody has
		must(t, errors.Join(err, f.Err))
	}
	must(t, c.Close())
	must(t, os.Truncate(filepath.Join(source, "everybody's"), 7))
	must(t, os.Remove(filepath.Join(source, "root's")))
	must(t, os.Remove(filepath.Join(source, "closed", "everybody's")))
	for ordinary, want := range map[bool][]string{
		true:  {"everybody's was cut, ", "2 withheld"},
		false: {"everybody's was cut, ", "root's was removed, ", "closed/everybody's was removed, ", "0 withheld"},
	} {
		got := child(t, ordinary, "changes", m.Path(), "3")
		rest := got
		for _, part := range want {
			rest = strings.Replace(rest, part, "", 1)
		}
		if rest != "" {
			t.Errorf("an ordinary user: %v: %s, want %q", ordinary, got, want)
		}
	}
	if r := suite.Run(t, "status", m.Path()); r.Code != 3 || !strings.Contains(r.Stdout, "files of the source have changed under the mount (3 so far") {
		t.Errorf("status says nothing of it: exit code %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}
