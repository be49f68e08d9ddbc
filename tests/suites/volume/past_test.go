package volume_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestPastPublishedNeverChanges: what was written past FUSE is as safe as what went through it, from its owner and from root.
func TestPastPublishedNeverChanges(t *testing.T) {
	v := mount(t)
	if said := volumetest.As(t, volumetest.Nobody, nil, "past", v.Path("step"), ""); said != "ok" {
		t.Fatalf("an ordinary user writes: %s", said)
	}
	volumetest.PastIsWhole(t, v, "step")
	var st unix.Stat_t
	blackbox.Must(t, unix.Stat(filepath.Join(v.Dir, "step", "file"), &st))
	if st.Uid != volumetest.Nobody || st.Gid != volumetest.Nobody || st.Mode&0o777 != 0o444 {
		t.Errorf("the file is of %d:%d with mode %o", st.Uid, st.Gid, st.Mode)
	}
	for _, user := range []uint32{0, volumetest.Nobody, volumetest.Other} {
		if said := volumetest.As(t, user, nil, "changes", v.Path("step")); said != "ok" {
			t.Errorf("user %d: %s", user, said)
		}
	}
	volumetest.Want(t, "begin it again", volumetest.WritePast(t.Context(), v.Path("step"), func(string) {}), unix.EEXIST)
	if said := volumetest.As(t, volumetest.Other, nil, "rmdir", v.Path("step")); said != "EPERM" {
		t.Errorf("another user removes it: %s", said)
	}
	if said := volumetest.As(t, volumetest.Nobody, nil, "rmdir", v.Path("step")); said != "ok" {
		t.Errorf("its owner removes it: %s", said)
	}
}

// TestPastAndThroughTheMount: drafts of both kinds know of each other.
func TestPastAndThroughTheMount(t *testing.T) {
	v := mount(t)
	w := volumetest.StartPast(t, v.Path("step"), "added")
	defer func() { _ = errors.Join(w.Process.Kill(), w.Wait()) }()
	if err := os.Mkdir(v.Path("step.tmp"), 0o755); err == nil {
		t.Error("a directory is made beside a draft of its name")
	}
	if names := volumetest.Listed(t, v.Point); len(names) != 0 {
		t.Errorf("%q is listed", names)
	}
	if said := volumetest.As(t, volumetest.Nobody, nil, "past", v.Path("step"), ""); said != "EBUSY" {
		t.Errorf("another user begins it: %s", said)
	}
	if said := volumetest.As(t, volumetest.Nobody, nil, "attach", v.Path("step")); said != "ENOENT" {
		t.Errorf("another user attaches: %s", said)
	}
	v.Draft(t, "plain", map[string]string{"file": "bytes"})
	volumetest.Want(t, "a draft of a plain program, past FUSE", volumetest.WritePast(t.Context(), v.Path("plain"), func(string) {}), unix.EBUSY)
	blackbox.Must(t, v.Publish("plain"))
}

// TestPastOnAFullDisk: a file that has no room is refused when it is asked for, and nothing is left.
func TestPastOnAFullDisk(t *testing.T) {
	v := mount(t) // skips where nothing can be mounted
	v.End(t)
	v = mountAt(t, small(t))
	d, err := control.BeginDraft(t.Context(), v.Path("step"), 0, 1, "test")
	blackbox.Must(t, err)
	_, _, err = d.Add(t.Context(), control.NewFile{Name: "large", Size: 100 << 20})
	volumetest.Want(t, "a file that is larger than the disk", err, unix.ENOSPC)
	_, pens, err := d.Add(t.Context(), control.NewFile{Name: "small", Size: 1 << 20})
	blackbox.Must(t, err)
	blackbox.Must(t, errors.Join(pens[0].Close(), d.Drop(t.Context())))
	blackbox.Must(t, volumetest.WritePast(t.Context(), v.Path("step"), func(string) {}))
	volumetest.PastIsWhole(t, v, "step")
}

// TestPastAsAnOrdinaryUser: an ordinary user's daemon cannot mount, and keeps the promises that leases keep.
func TestPastAsAnOrdinaryUser(t *testing.T) {
	blackbox.NeedRoot(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("needs fusermount3")
	}
	private, err := blackbox.PublicFUSE()
	blackbox.Must(t, err)
	defer func() { blackbox.Must(t, private()) }()
	args := []string{suite.Path()}
	for range 2 {
		dir := suite.NewDir(t)
		blackbox.Must(t, os.Chown(dir, volumetest.Nobody, volumetest.Nobody))
		args = append(args, dir)
	}
	if said := volumetest.As(t, volumetest.Nobody, nil, "ordinary past", args...); said != "ok" {
		t.Error(said)
	}
	if names := volumetest.Listed(t, args[1]); !slices.Equal(names, []string{"step"}) {
		t.Errorf("the directory has %q", names)
	}
}

// ordinaryPast mounts a volume, and writes into it past FUSE.
func ordinaryPast(hbmfs, directory, point string) (err error) {
	if out, err := exec.Command(hbmfs, "checkpoint", "mount", "--log-file", "/dev/null", directory, point).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	defer func() {
		if out, umountErr := exec.Command(hbmfs, "umount", point).CombinedOutput(); umountErr != nil {
			err = errors.Join(err, umountErr, errors.New(string(out)))
		}
	}()
	ctx := context.Background()
	d, err := control.BeginDraft(ctx, point+"/pen", 0, 1, "test")
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	first, pens, err := d.Add(ctx, control.NewFile{Name: "file", Size: 5})
	if err != nil {
		return err
	}
	_, err = pens[0].WriteString("bytes")
	if err := errors.Join(err, pens[0].Truncate(5), d.Seal(ctx, first, volumetest.SumsOf([]byte("bytes")))); err != nil {
		return err
	}
	if err := d.Publish(ctx, 1, 5); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), `"file"`) {
		return fmt.Errorf("it is published while it is open: %w", err)
	}
	if err := errors.Join(pens[0].Close(), d.Drop(ctx), volumetest.WritePast(ctx, point+"/step", func(string) {})); err != nil {
		return err
	}
	text, err := os.ReadFile(point + "/step/file")
	if err != nil || string(text) != "bytes" {
		return fmt.Errorf("it has %q: %w", text, err)
	}
	return nil
}
