package volume_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestBounds fills the table of drafts as one user, and sees that another is still served.
func TestBounds(t *testing.T) {
	v := mount(t)
	if said := volumetest.As(t, volumetest.Nobody, nil, "fill", v.Point); said != "EMFILE" {
		t.Errorf("a user who makes drafts without end gets %q", said)
	}
	if said := volumetest.As(t, volumetest.Other, nil, "mkdir", v.Path("other.tmp")); said != "ok" {
		t.Errorf("another user's draft: %s", said)
	}
	blackbox.Must(t, os.Mkdir(v.Path("root.tmp"), 0o755))
	if n := len(v.State(t).Checkpoints.Drafts); n < 16 || n > 512 {
		t.Errorf("there are %d drafts", n)
	}
}

// fill makes drafts until that is refused.
func fill(point string) error {
	for i := range 10000 {
		if err := os.Mkdir(fmt.Sprintf("%s/draft%d.tmp", point, i), 0o755); err != nil {
			return err
		}
	}
	return errors.New("10,000 drafts")
}

// TestOrdinaryUser: an ordinary user's volume is written through the daemon, and keeps the same promises.
func TestOrdinaryUser(t *testing.T) {
	blackbox.NeedRoot(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("needs fusermount3")
	}
	private, err := blackbox.PublicFUSE()
	blackbox.Must(t, err)
	defer func() { blackbox.Must(t, private()) }()
	var dirs []string
	for range 3 {
		dir := suite.NewDir(t)
		blackbox.Must(t, os.Chown(dir, volumetest.Nobody, volumetest.Nobody))
		dirs = append(dirs, dir)
	}
	said := volumetest.As(t, volumetest.Nobody, nil, "ordinary", append([]string{suite.Path()}, dirs...)...)
	kept := strings.HasPrefix(said, "exit status 1\nhbmfs: "+dirs[1]+" is unmounted, but its daemon") && shown(t, dirs[1])
	if said != "ok" && !kept {
		t.Error(said)
	}
	if names := volumetest.Listed(t, dirs[0]); !slices.Equal(names, []string{"pen"}) {
		t.Errorf("the directory has %q", names)
	}
}

// shown tells whether the mount namespace of any process has a mount at point: one that another suite makes has copies of those that are there,
// and keeps their daemons. An ordinary user cannot see that.
func shown(t *testing.T, point string) bool {
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	blackbox.Must(t, err)
	return slices.ContainsFunc(tables, func(name string) bool {
		table, _ := os.ReadFile(name) // its process may have ended
		return strings.Contains(string(table), " "+point+" ")
	})
}

// ordinary mounts a volume of DIRECTORY at POINT, does the POSIX cases there and in PLAIN, and tries to keep a pen.
func ordinary(hbmfs, directory, point, plain string) (err error) {
	log := plain + "/log"
	out, err := os.Create(plain + "/said") // a pipe would be the daemon's, too
	if err != nil {
		return err
	}
	cmd := exec.Command(hbmfs, "checkpoint", "mount", "--log-file", log, directory, point)
	cmd.Stdout, cmd.Stderr = out, out
	if err := errors.Join(cmd.Run(), out.Close()); err != nil {
		said, _ := os.ReadFile(plain + "/said")
		return fmt.Errorf("%w: %s", err, said)
	}
	defer func() {
		if out, umountErr := exec.Command(hbmfs, "umount", point).CombinedOutput(); umountErr != nil {
			err = errors.Join(err, umountErr, errors.New(string(out)))
		}
	}()
	if err := os.Mkdir(point+"/posix.tmp", 0o755); err != nil {
		return err
	}
	for i, c := range posixCases {
		here, there := fmt.Sprintf("%s/posix.tmp/%d", point, i), fmt.Sprintf("%s/%d", plain, i)
		if err := errors.Join(os.Mkdir(here, 0o755), os.Mkdir(there, 0o755)); err != nil {
			return err
		}
		got, want := strings.ReplaceAll(c.do(here), here, "DIR"), strings.ReplaceAll(c.do(there), there, "DIR")
		if got != want {
			err = errors.Join(err, fmt.Errorf("%s: in a draft %s\nin the directory %s", c.name, got, want))
		}
	}
	return errors.Join(err, pen(point), os.RemoveAll(point+"/posix.tmp"))
}

// pen tries to publish what can still be written.
func pen(point string) error {
	draft, name := point+"/pen.tmp", point+"/pen"
	if err := errors.Join(os.Mkdir(draft, 0o755), os.WriteFile(draft+"/file", []byte("bytes"), 0o644)); err != nil {
		return err
	}
	fd, err := unix.Open(draft+"/file", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := os.Rename(draft, name); !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("it is published while it is open: %w", err)
	}
	m, err := unix.Mmap(fd, 0, 5, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	if err := os.Rename(draft, name); !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("it is published while it is mapped: %w", err)
	}
	m[0] = 'B'
	if err := errors.Join(unix.Munmap(m), os.Rename(draft, name)); err != nil {
		return err
	}
	text, err := os.ReadFile(name + "/file")
	if err != nil || string(text) != "Bytes" {
		return fmt.Errorf("it has %q: %w", text, err)
	}
	for _, c := range changes {
		if c.name != "make the name again" && !strings.Contains(c.name, "sub") && c.do(name) == nil {
			return fmt.Errorf("%s was done", c.name)
		}
	}
	return nil
}
