package mount_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// An ordinary user mounts through fusermount3. Reads go through the daemon, and the log says so once.
func TestOrdinaryUser(t *testing.T) {
	blackbox.NeedRoot(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("needs fusermount3")
	}
	mounttest.MakeFUSEPublic(t)
	source := filepath.Join(suite.NewDir(t), "a, b")
	for _, name := range []string{"megatron-merge", "nanogpt", "tar", "safetensors"} {
		must(t, os.CopyFS(filepath.Join(source, name), os.DirFS(mounttest.Golden(t, name))))
	}
	mounttest.WriteFiles(t, source, map[string]string{"unreadable": "no"})
	must(t, os.Chmod(filepath.Join(source, "unreadable"), 0))
	m := &mounted{suite.MountAsNobody(t, source)}
	if said, ok := mounttest.Child(t, true, "compare", filepath.Join(source, "megatron-merge"), m.Path("megatron-merge")); !ok {
		t.Error(said)
	}
	if said, ok := mounttest.Child(t, true, "compare", filepath.Join(source, "tar"), m.Path("tar")); !ok {
		t.Error(said)
	}
	for name, want := range map[string]string{
		"unreadable":                                "EACCES",
		".hbmfs/views/nanogpt/train/tokens.npy":     "ok",
		".hbmfs/views/megatron-merge/megatron.idx":  "ok",
		".hbmfs/views/megatron-merge/documents.npy": "ok",
	} {
		if got := mounttest.ReadAs(t, true, m.Path(name)); got != want {
			t.Errorf("nobody reads %s of its own mount: %s, want %s", name, got, want)
		}
	}
	// The kernel keeps even root out of a user's mount.
	if got := mounttest.ReadAs(t, false, m.Path("nanogpt", "train.bin")); got != "EACCES" {
		t.Errorf("root reads nobody's mount: %s, want EACCES", got)
	}
	if n := strings.Count(m.LogText(t), "passthrough"); n != 2 { // the sentence and its reason, on one line
		t.Errorf("the log speaks of passthrough %d times, want one line:\n%s", n, m.LogText(t))
	}
	r := suite.RunAsNobody(t, "umount", m.Point)
	if r.Code != 0 {
		t.Errorf("nobody unmounts: exit code %d: %s", r.Code, r.Stderr)
	}
	if mounted, err := blackbox.IsMounted(m.Point); err != nil || mounted {
		t.Errorf("still mounted: %v, %v", mounted, err)
	}
}

// The mount of another user is no mystery: the errors say whose help is needed. Neither is a device that users may not open.
func TestOrdinaryUserWithoutRights(t *testing.T) {
	blackbox.NeedRoot(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("needs fusermount3")
	}
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"a": "a"})
	m := mount(t, source)
	if r := suite.RunAsNobody(t, "umount", m.Point); r.Code == 0 || !strings.Contains(r.Stderr, "another user mounted it") {
		t.Errorf("nobody unmounts a mount of root: exit code %d: %s", r.Code, r.Stderr)
	}
	if r := suite.RunAsNobody(t, "status", m.Point); r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, "--allow-other, and if the permissions of its source let them") {
		t.Errorf("nobody looks at a mount of root: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// A reader of the same user passes by FUSE. The socket is bound by a helper, whose namespace must not keep the mount.
func TestOrdinaryUserPassesByFUSE(t *testing.T) {
	blackbox.NeedRoot(t)
	mounttest.MakeFUSEPublic(t)
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"shard.bin": strings.Repeat("tokens ", 1000)})
	m := &mounted{suite.MountAsNobody(t, source)}
	var s struct {
		Control struct {
			On  bool   `json:"on"`
			Why string `json:"why"`
		} `json:"control"`
	}
	show := exec.Command("cat", m.Path(".hbmfs", "status"))
	show.SysProcAttr = blackbox.AsNobody()
	show.Dir = "/"
	said, err := show.Output()
	must(t, errors.Join(err, json.Unmarshal(said, &s)))
	if !s.Control.On {
		if !strings.Contains(s.Control.Why, "user namespace") {
			t.Errorf("there is no socket, because of %q", s.Control.Why)
		}
		t.Skipf("needs user namespaces for ordinary users: %s", s.Control.Why)
	}
	if said, ok := mounttest.Child(t, true, "bypass", m.Path(), "shard.bin"); !ok {
		t.Error(said)
	}
	if r := suite.RunAsNobody(t, "umount", m.Point); r.Code != 0 {
		t.Errorf("the socket keeps the mount: exit code %d: %s", r.Code, r.Stderr)
	}
}

// bypass reads a file of a mount through the control channel, after an ioctl and by LOOKUP, and compares.
func bypass(mount, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	root, err := os.OpenRoot(mount) // for names longer than a call takes
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for reading: nothing is lost
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	want, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	c, err := control.Dial(ctx, mount, "bypass")
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // nothing of it is needed any more
	for b, err := range control.Batches(f, 0, math.MaxInt64, true) {
		if err != nil {
			return err
		}
		files, err := c.Redeem(ctx, b.Ticket, b.Objects())
		if err != nil {
			return err
		}
		got := make([]byte, len(want))
		if _, err := files[0].File.ReadAt(got, b.Extents[0].Offset); err != nil || !bytes.Equal(got, want) {
			return errors.Join(errors.New("the backing file differs"), err)
		}
		if err := errors.Join(files[0].File.Close(), c.Release(ctx, files[0].Object)); err != nil {
			return err
		}
	}
	for found, err := range c.Lookup(ctx, []string{name}) {
		if err != nil {
			return err
		}
		got := make([]byte, len(want))
		if _, err := found.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			return errors.Join(errors.New("what LOOKUP gives differs"), err)
		}
	}
	return nil
}

func TestOrdinaryUserBusyUnmount(t *testing.T) {
	blackbox.NeedRoot(t)
	mounttest.MakeFUSEPublic(t)
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"file": "1"})
	m := &mounted{suite.MountAsNobody(t, source)}
	holder := exec.Command("sleep", "100")
	holder.Dir = m.Point
	holder.SysProcAttr = blackbox.AsNobody()
	must(t, holder.Start())
	defer func() { _ = holder.Process.Kill() }() // where the test ends early
	if r := suite.RunAsNobody(t, "umount", m.Point); r.Code != 4 || !strings.Contains(r.Stderr, "sleep") {
		t.Errorf("unmounting a busy mount: exit code %d, want 4: %s", r.Code, r.Stderr)
	}
	must(t, holder.Process.Kill())
	_ = holder.Wait() // killed, which is its error
	if r := suite.RunAsNobody(t, "umount", m.Point); r.Code != 0 {
		t.Errorf("unmounting: exit code %d: %s", r.Code, r.Stderr)
	}
}
