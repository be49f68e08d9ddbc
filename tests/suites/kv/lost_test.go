package kv_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/kv"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/thin"
)

// disk is a filesystem on a loop device, whose image lies on a tmpfs: it is thin, and full when the test says so.
type disk struct {
	kind, thin, image, point string
}

func newDisk(t *testing.T, kind string) *disk {
	t.Helper()
	blackbox.NeedRoot(t)
	d := &disk{kind: kind, thin: suite.NewDir(t), point: suite.NewDir(t)}
	must(t, unix.Mount("thin", d.thin, "tmpfs", 0, "size=1g"))
	t.Cleanup(func() { must(t, unix.Unmount(d.thin, unix.MNT_DETACH)) })
	d.image = filepath.Join(d.thin, "image")
	must(t, errors.Join(os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, 400<<20)))
	words := []string{"mkfs." + kind, "-q", d.image}
	if kind == "ext4" {
		words = []string{"mkfs.ext4", "-q", "-F", "-e", "remount-ro", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.image}
	}
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Skipf("%s: %v: %s", words[0], err, out)
	}
	d.mount(t)
	t.Cleanup(func() { _ = unix.Unmount(d.point, unix.MNT_DETACH) })
	return d
}

func (d *disk) mount(t *testing.T) {
	t.Helper()
	options := "loop"
	if d.kind == "xfs" {
		options += ",nouuid"
	}
	if out, err := exec.Command("mount", "-o", options, d.image, d.point).CombinedOutput(); err != nil {
		t.Skipf("mount a loop device: %v: %s", err, out)
	}
}

// again unmounts the filesystem, and mounts a copy of its image. Namespaces of other tests' processes may still hold the first one, which was shut down.
func (d *disk) again(t *testing.T) {
	t.Helper()
	must(t, unix.Unmount(d.point, 0))
	image := d.image + ".again"
	if out, err := exec.Command("cp", "--sparse=always", d.image, image).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	d.image = image
	d.mount(t)
}

// fill makes the thin device full, or gives it room again.
func (d *disk) fill(t *testing.T, full bool) {
	t.Helper()
	size := "size=1g"
	if full {
		var st unix.Statfs_t
		must(t, unix.Statfs(d.thin, &st))
		size = fmt.Sprintf("size=%dk", int64(st.Blocks-st.Bfree)*st.Bsize>>10)
	}
	must(t, unix.Mount("thin", d.thin, "tmpfs", unix.MS_REMOUNT, size))
}

// shutdown has the filesystem lose all that is not on the disk: XFS_IOC_GOINGDOWN, which ext4 knows too.
func (d *disk) shutdown(t *testing.T) {
	t.Helper()
	dir, err := os.Open(d.point)
	must(t, err)
	defer func() { _ = dir.Close() }() // opened for the call
	const goingDown, noLog = 0x8004587d, 2
	flags := uint32(noLog)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), goingDown, uintptr(unsafe.Pointer(&flags))); errno != 0 {
		t.Skip("shut a filesystem down: ", errno)
	}
}

// lostBlock is the size of the blocks of these tests.
const lostBlock = 256 << 10

// on is a volume on a disk, or in a directory of it.
func on(t *testing.T, dir string) *volume {
	t.Helper()
	v := &volume{dir: dir, point: suite.NewDir(t), log: filepath.Join(suite.NewDir(t), "log"), flags: []string{"--size", "80MiB", "--disk-io", "buffered", "--no-keeper"}}
	v.mount(t)
	t.Cleanup(func() {
		if is, err := blackbox.IsMounted(v.point); is || err != nil {
			v.crash(t)
		}
	})
	return v
}

// crash kills the daemon, which has no keeper, and takes the dead mount away.
func (v *volume) crash(t *testing.T) {
	t.Helper()
	pid := v.status(t).PID
	must(t, unix.Kill(pid, unix.SIGKILL))
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(pid) }) {
		t.Fatalf("the daemon %d has not ended", pid)
	}
	must(t, blackbox.Detach(v.point))
}

// fillWith stores blocks without asking for checksums.
func (v *volume) fillWith(t *testing.T, keys []string) {
	t.Helper()
	s, err := kv.Open(t.Context(), v.point, "model", kv.Options{Device: kv.HostDevice, BlockBytes: lostBlock, Create: true, Write: true})
	must(t, err)
	for _, key := range keys {
		q, err := s.Put([]kv.Block{{Key: []byte(key), Parts: []kv.Memory{{Host: blockOf(key, lostBlock)}}}}, nil, nil)
		must(t, err)
		_, err = q.Result()
		must(t, err)
	}
	must(t, s.Close())
}

// isRight loads blocks without asking for checksums, and fails where a hit is wrong. It tells how many are hits, and how many damaged.
func (v *volume) isRight(t *testing.T, keys []string) (hits, damaged int) {
	t.Helper()
	s, err := kv.Open(t.Context(), v.point, "model", kv.Options{Device: kv.HostDevice, BlockBytes: lostBlock, Create: true, Write: true})
	must(t, err)
	wrong := 0
	for _, key := range keys {
		got := make([]byte, lostBlock)
		q, err := s.Get([]kv.Block{{Key: []byte(key), Parts: []kv.Memory{{Host: got}}}}, nil, nil)
		must(t, err)
		r, err := q.Result()
		must(t, err)
		switch {
		case r.Outcomes[0] == kv.Done && !bytes.Equal(got, blockOf(key, lostBlock)):
			wrong++
		case r.Outcomes[0] == kv.Done:
			hits++
		case r.Outcomes[0] == kv.Damaged:
			damaged++
		}
	}
	must(t, s.Close())
	if wrong > 0 {
		t.Errorf("%d of %d hits are wrong", wrong, wrong+hits)
	}
	t.Logf("%d of %d blocks are hits, %d are damaged", hits, len(keys), damaged)
	return hits, damaged
}

// forget takes the slab out of the page cache, as memory pressure would.
func (v *volume) forget(t *testing.T) {
	t.Helper()
	f, err := os.Open(filepath.Join(v.dir, "model", "slab"))
	must(t, err)
	_ = f.Sync() // it may fail: that is what these tests are about
	must(t, errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close()))
}

// sync brings one file of the namespace to the disk.
func (v *volume) sync(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(v.dir, "model", name), os.O_RDWR, 0)
	must(t, err)
	must(t, errors.Join(f.Sync(), f.Close()))
}

// Blocks that the disk has lost are no hits, whoever reads them, also without checksums of the memory tier (Sums).
func TestLostBlocksAreNoHits(t *testing.T) {
	keys := keysOf(0, 200)
	for _, kind := range []string{"xfs", "ext4"} {
		t.Run("the filesystem was shut down, "+kind, func(t *testing.T) {
			d := newDisk(t, kind)
			v := on(t, d.point)
			v.fillWith(t, keys[:20])
			v.sync(t, "slab")
			v.sync(t, "index")
			v.fillWith(t, keys[20:])
			v.sync(t, "index") // its records come to the disk before their blocks
			d.shutdown(t)
			v.crash(t)
			d.again(t)
			v = on(t, d.point)
			v.isRight(t, keys)
			v.fillWith(t, keys)
			if hits, _ := v.isRight(t, keys); hits != len(keys) {
				t.Errorf("stored again, %d of %d blocks are hits", hits, len(keys))
			}
		})
		t.Run("a thin device was full, "+kind, func(t *testing.T) {
			d := newDisk(t, kind)
			v := on(t, d.point)
			v.fillWith(t, keys[:100])
			v.sync(t, "slab")
			d.fill(t, true)
			v.fillWith(t, keys[100:])
			v.forget(t)
			d.fill(t, false)
			if hits, damaged := v.isRight(t, keys); hits < 100 || damaged == 0 {
				t.Errorf("%d blocks are hits, %d are damaged: want those hits that were synced, and some lost", hits, damaged)
			}
			v.crash(t)
			v = on(t, d.point)
			v.isRight(t, keys)
		})
	}
	t.Run("a thin device lost 64 KiB inside a block", func(t *testing.T) {
		d := newDisk(t, "ext4")
		v := on(t, d.point)
		v.fillWith(t, keys)
		v.sync(t, "slab")
		for slot := range uint64(20) {
			thin.Lose(t, d.image, filepath.Join(v.dir, "model", "slab"), slot*lostBlock+(64<<10), 64<<10)
		}
		v.forget(t)
		if hits, damaged := v.isRight(t, keys); damaged != 20 || hits != len(keys)-20 {
			t.Errorf("%d blocks are hits, %d are damaged, want 20 damaged", hits, damaged)
		}
		if hits, damaged := v.isRight(t, keys); damaged != 0 || hits != len(keys)-20 {
			t.Errorf("then %d blocks are hits, %d are damaged: want these dropped", hits, damaged)
		}
	})
	t.Run("a copy of a live volume", func(t *testing.T) {
		d := newDisk(t, "ext4")
		from, to := filepath.Join(d.point, "live"), filepath.Join(d.point, "copy")
		must(t, errors.Join(os.Mkdir(from, 0o755), os.Mkdir(to, 0o755)))
		v := on(t, from)
		v.fillWith(t, keys)
		copyAll(t, filepath.Join(from, "model", "slab"), to)
		v.fillWith(t, keysOf(200, 300)) // what was copied is evicted meanwhile
		copyAll(t, filepath.Join(from, "model", "index"), to)
		copyAll(t, filepath.Join(from, "model", "space"), to)
		v.crash(t)
		v = on(t, to)
		all := slices.Concat(keys, keysOf(200, 300))
		if hits, damaged := v.isRight(t, all); hits+damaged > 0 {
			t.Errorf("%d blocks of the copy are hits, and %d are damaged: want a namespace that begins anew", hits, damaged)
		}
		v.crash(t)
		v = on(t, from)
		if hits, damaged := v.isRight(t, all); hits == 0 || damaged > 0 {
			t.Errorf("%d blocks of the volume itself are hits, %d are damaged", hits, damaged)
		}
	})
}

func copyAll(t *testing.T, file, to string) {
	t.Helper()
	dir := filepath.Join(to, "model")
	must(t, os.MkdirAll(dir, 0o700))
	if out, err := exec.CommandContext(context.Background(), "cp", "-a", file, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Blocks of the disk are there after a remount of the filesystem in another mount namespace: a mount is no property of the volume.
func TestHitsSurviveARemountElsewhere(t *testing.T) {
	d := newDisk(t, "ext4")
	v := on(t, d.point)
	keys := keysOf(0, 50)
	v.fillWith(t, keys)
	v.crash(t)
	elsewhere := suite.NewDir(t)
	must(t, unix.Mount(d.point, elsewhere, "", unix.MS_BIND, "")) // another mount of the same superblock
	t.Cleanup(func() { must(t, unix.Unmount(elsewhere, unix.MNT_DETACH)) })
	must(t, unix.Unmount(d.point, 0))
	v = on(t, elsewhere)
	if hits, _ := v.isRight(t, keys); hits != len(keys) {
		t.Errorf("%d of %d blocks are hits", hits, len(keys))
	}
}

// A disk that is read-only leaves the memory tier as it is: engines open new namespaces, and these outlive the daemon.
func TestNewNamespaceOnAReadOnlyDisk(t *testing.T) {
	d := newDisk(t, "ext4")
	v := &volume{dir: d.point, point: suite.NewDir(t), log: filepath.Join(suite.NewDir(t), "log"), flags: []string{"--size", "80MiB", "--memory", "16MiB"}}
	v.mount(t)
	t.Cleanup(func() { v.end(t) })
	keys := keysOf(0, 20)
	put := func(name string) {
		t.Helper()
		e := v.connect(t, name, 64<<10)
		stored, _, err := e.put(t.Context(), keys...)
		must(t, err)
		if len(stored) != len(keys) {
			t.Errorf("%s: %d of %d blocks are stored", name, len(stored), len(keys))
		}
		must(t, e.close())
	}
	put("before")
	device, err := exec.Command("findmnt", "-n", "-o", "SOURCE", "-M", d.point).Output()
	must(t, err)
	if err := os.WriteFile("/sys/fs/ext4/"+filepath.Base(strings.TrimSpace(string(device)))+"/trigger_fs_error", []byte("1"), 0); err != nil {
		t.Skip("make a filesystem read-only: ", err)
	}
	put("after")
	for life := range 3 {
		put(fmt.Sprint("new-", life))
		for _, name := range []string{"before", "after", "new-0"} {
			e := v.connect(t, name, 64<<10)
			if found, err := e.get(t.Context(), keys...); err != nil || len(found) != len(keys) {
				t.Errorf("%s: %d of %d blocks are found, %v", name, len(found), len(keys), err)
			}
			must(t, e.close())
		}
		v.kill(t)
	}
	if text, err := os.ReadFile(filepath.Join(v.point, ".hbmfs", "status")); err != nil || !bytes.Contains(text, []byte("in memory alone")) {
		t.Errorf("the status does not say so: %v\n%s", err, text)
	}
}
