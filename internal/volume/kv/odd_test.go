package kv

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// odd are things that a user can put where a volume looks for a file of its own.
var odd = map[string]func(path string) error{
	"a FIFO":      func(path string) error { return unix.Mkfifo(path, 0o666) },
	"a directory": func(path string) error { return os.Mkdir(path, 0o755) },
	"a link":      func(path string) error { return os.Symlink("/dev/zero", path) },
	"a loop":      func(path string) error { return os.Symlink(filepath.Base(path), path) },
	"a hard link": func(path string) error {
		other := filepath.Join(filepath.Dir(filepath.Dir(path)), "precious")
		if err := os.WriteFile(other, []byte("precious"), 0o600); err != nil {
			return err
		}
		return os.Link(other, path)
	},
	"a file that somebody has a lease on": func(path string) error {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err == nil {
			_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
		}
		held = append(held, f)
		return err
	},
}

var held []*os.File // open until the test ends

// A namespace that is not as it should be is left out, and said. The others are there, and its name is free for a new one.
func TestOneBadNamespaceIsLeftOut(t *testing.T) {
	for what, make := range odd {
		for _, file := range []string{slabName, indexName, metaName} {
			t.Run(what+" as "+file, func(t *testing.T) {
				dir := t.TempDir()
				t.Cleanup(func() { closeHeld() })
				v := open(t, dir, 32<<20, 0)
				for _, name := range []string{"a-good", "bad", "good"} {
					c := v.connect(name, 4096)
					c.put(4096, "key")
					c.close()
				}
				v.stop()
				bad := filepath.Join(dir, "bad", file)
				must(t, os.Remove(bad))
				must(t, make(bad))
				if what == "a link" && file == metaName { // and one that leads to a whole namespace
					must(t, errors.Join(os.Remove(bad), os.Symlink("../good/"+metaName, bad)))
				}
				v = open(t, dir, 32<<20, 0)
				if notes := strings.Join(v.Notes(), "\n"); !strings.Contains(notes, `1 namespaces of `) || !strings.Contains(notes, `"bad"`) {
					t.Errorf("the notes are %q, want the namespace that is left out", notes)
				}
				for _, name := range []string{"a-good", "good", "bad"} {
					c := v.connect(name, 4096)
					if got := c.get("key"); (got == nil) != (name == "bad") {
						t.Errorf("namespace %q has %d bytes of its block", name, len(got))
					}
					c.put(4096, "new")
					if c.get("new") == nil {
						t.Errorf("namespace %q keeps no block", name)
					}
					c.close()
				}
				v.stop()
				if what == "a hard link" {
					if b, err := os.ReadFile(filepath.Join(dir, "precious")); err != nil || !bytes.Equal(b, []byte("precious")) {
						t.Errorf("another's file has %d bytes, %v", len(b), err)
					}
				}
				v = open(t, dir, 32<<20, 0) // what was set aside is no trouble
				if notes := v.Notes(); len(notes) > 0 && what != "a hard link" {
					t.Errorf("the next mount says %q", notes)
				}
			})
		}
	}
}

func closeHeld() {
	for _, f := range held {
		_ = f.Close()
	}
	held = nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A name is free though somebody makes something of that name while the volume is mounted, and so it is at the next mount.
func TestWhatIsInTheWayOfANamespaceIsSetAside(t *testing.T) {
	for _, make := range []func(path string) error{
		func(path string) error { return os.Mkdir(path, 0o755) },
		func(path string) error {
			return errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "precious"), nil, 0o600))
		},
		odd["a FIFO"], odd["a link"],
	} {
		dir := t.TempDir()
		v := open(t, dir, 32<<20, 0)
		must(t, make(filepath.Join(dir, "model")))
		for range 2 {
			c := v.connect("model", 4096)
			c.put(4096, "key")
			if c.get("key") == nil {
				t.Error("no block is kept")
			}
			c.close()
			v.stop()
			v = open(t, dir, 32<<20, 0)
		}
		if aside, err := filepath.Glob(filepath.Join(dir, asideName+"model-*")); err != nil || len(aside) != 1 {
			t.Errorf("set aside are %q, %v, want one", aside, err)
		}
		v.stop()
	}
}

// A name that is a directory the one moment and a FIFO the next is never waited for, and never opened as anything but what it shall be.
func TestADirectoryThatBecomesAFIFO(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "swapped")
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	must(t, errors.Join(os.Mkdir(good, 0o700), unix.Mkfifo(bad, 0o600), unix.Rename(good, at)))
	parent, err := os.Open(dir)
	must(t, err)
	defer func() { _ = parent.Close() }()
	var end atomic.Bool
	over := make(chan error, 1)
	go func() {
		var err error
		for !end.Load() && err == nil {
			err = unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, bad, unix.RENAME_EXCHANGE)
		}
		over <- err
	}()
	opened, refused := 0, 0
	for until := time.Now().Add(30 * time.Second); (opened < 200 || refused < 200) && time.Now().Before(until); {
		f, err := openAt(parent, "swapped", unix.O_RDONLY|unix.O_DIRECTORY)
		switch {
		case err == nil:
			opened++
			info, err := f.Stat()
			must(t, err)
			if !info.IsDir() {
				t.Fatalf("it is open as %v", info.Mode())
			}
			must(t, f.Close())
		case errors.Is(err, errOdd):
			refused++
		default:
			t.Fatal(err)
		}
	}
	end.Store(true)
	must(t, <-over)
	if opened < 200 || refused < 200 {
		t.Errorf("it was opened %d times, and refused %d times", opened, refused)
	}
}

// mountExt4 makes a filesystem that becomes read-only at its first error.
func mountExt4(t *testing.T) (dir string, becomeReadOnly func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("filesystems need root")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 64<<20))
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Skipf("%s: %v: %s", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("mkfs.ext4", "-q", "-F", image)
	run("mount", "-o", "loop,errors=remount-ro", image, dir)
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	device := filepath.Base(run("findmnt", "-n", "-o", "SOURCE", dir))
	return dir, func() {
		t.Helper()
		if err := os.WriteFile("/sys/fs/ext4/"+device+"/trigger_fs_error", []byte("1"), 0); err != nil {
			t.Skip(err)
		}
	}
}

// Engines that come while the disk is read-only use the memory tier, and read what the disk has.
func TestEnginesComeWhileTheDiskIsReadOnly(t *testing.T) {
	dir, becomeReadOnly := mountExt4(t)
	s, err := New(Options{Directory: dir, Size: 16 << 20, Memory: 4 << 20, Log: slog.New(slog.DiscardHandler), LeaseTime: 200 * time.Millisecond})
	must(t, err)
	must(t, s.Load())
	v := &volume{s, t, func() {}}
	first := v.connect("model", 4096)
	for at := 0; at < 1200; at += 100 {
		first.put(4096, keysOf(at, 100)...)
	}
	first.close()
	becomeReadOnly()
	c := v.connect("model", 4096)
	onDisk := false
	for _, key := range keysOf(0, 1200) {
		tier := c.lookup(c.space, [][]byte{[]byte(key)}, false)[0].Tier
		onDisk = onDisk || tier == 1
		if c.get(key) == nil {
			t.Fatalf("block %q is not found", key)
		}
	}
	if !onDisk {
		t.Error("no block is on the disk")
	}
	fresh := keysOf(5000, 100)
	for i, errno := range c.put(4096, fresh...) {
		if errno != 0 {
			t.Fatalf("block %q is not taken: %v", fresh[i], errno)
		}
	}
	for _, key := range fresh {
		if c.get(key) == nil {
			t.Errorf("block %q is not found", key)
		}
	}
	c.close() // its memory is others' now
	other := v.connect("another", 4096)
	defer other.close()
	for i, errno := range other.put(4096, fresh...) {
		if errno != 0 {
			t.Fatalf("block %q of a new namespace is not taken: %v", fresh[i], errno)
		}
	}
	for _, key := range fresh {
		if other.get(key) == nil {
			t.Errorf("block %q of a new namespace is not found", key)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "another")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the disk has the namespace: %v", err)
	}
	if notes := strings.Join(v.Notes(), "\n"); !strings.Contains(notes, `"another" is in memory alone`) {
		t.Errorf("the status does not say so: %s", notes)
	}
	if err := s.Close(); err == nil { // with the namespace that is in memory alone
		t.Error("the disk was synced")
	}
}

// A volume that is mounted on a read-only disk reads the namespaces that ended in order, and leaves out one that a crash of the machine left behind. Its name is free,
// in memory.
func TestCrashedNamespaceOnAReadOnlyDisk(t *testing.T) {
	dir, _ := mountExt4(t)
	v := open(t, dir, 16<<20, 0)
	for _, name := range []string{"good", "crashed", "lost"} {
		c := v.connect(name, 4096)
		c.put(4096, "key")
		c.close()
	}
	v.stop()
	for name, change := range map[string]func(m *meta){
		"crashed": func(m *meta) { m.Boot, m.Ended = "another", false },
		"lost":    func(m *meta) { m.Lost = true },
	} {
		path := filepath.Join(dir, name, metaName)
		text, err := os.ReadFile(path)
		must(t, err)
		m, ok := parseMeta(text)
		if !ok {
			t.Fatalf("%s is no meta", path)
		}
		change(&m)
		must(t, os.WriteFile(path, m.encode(), 0o600))
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	v = open(t, dir, 16<<20, 4<<20)
	notes := strings.Join(v.Notes(), "\n")
	for _, want := range []string{"the disk took no writes", "2 namespaces of ", `"crashed" (`, `"lost" (`, "the disk could not write all of its blocks"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes have no %q: %s", want, notes)
		}
	}
	for _, name := range []string{"good", "crashed", "lost"} {
		c := v.connect(name, 4096)
		if got := c.get("key"); (got == nil) != (name != "good") {
			t.Errorf("namespace %q has %d bytes of its block", name, len(got))
		}
		c.put(4096, "new")
		if c.get("new") == nil {
			t.Errorf("namespace %q keeps no block", name)
		}
		c.close()
	}
}
