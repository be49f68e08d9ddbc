package kv_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// frozen is a volume that is mounted while its directory takes no writes. It gives what the mount said, too.
func frozen(t *testing.T, dir string) (v *volume, said string) {
	t.Helper()
	v = &volume{dir: dir, point: suite.NewDir(t), log: filepath.Join(suite.NewDir(t), "log"), flags: []string{"--size", "80MiB", "--memory", "16MiB"}}
	r := suite.Run(t, append(append([]string{"kv", "mount"}, v.flags...), "--allow-other", "--log-file", v.log, dir, v.point)...)
	if r.Code != 0 {
		t.Fatalf("mount ends with %d: %s", r.Code, r.Stderr)
	}
	v.Mount = suite.At(v.point)
	t.Cleanup(func() { v.end(t) })
	return v, r.Stderr
}

// stores puts blocks, and finds them again.
func (v *volume) stores(t *testing.T, name string, keys []string) {
	t.Helper()
	e := v.connect(t, name, 64<<10)
	stored, survives, err := e.put(t.Context(), keys...)
	must(t, err)
	if len(stored) != len(keys) || slices.Contains(survives, control.KVOnDisk) {
		t.Errorf("%s: %d of %d blocks are stored, %v", name, len(stored), len(keys), survives)
	}
	must(t, e.close())
	v.finds(t, name, keys)
}

func (v *volume) finds(t *testing.T, name string, keys []string) {
	t.Helper()
	e := v.connect(t, name, 64<<10)
	if found, err := e.get(t.Context(), keys...); err != nil || len(found) != len(keys) {
		t.Errorf("%s: %d of %d blocks are found, %v", name, len(found), len(keys), err)
	}
	must(t, e.close())
}

// tree is what a directory has: names, and sums of files.
func tree(t *testing.T, dir string) map[string][sha256.Size]byte {
	t.Helper()
	files := map[string][sha256.Size]byte{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var b []byte
		if err == nil && e.Type().IsRegular() {
			b, err = os.ReadFile(path)
		}
		files[path] = sha256.Sum256(b)
		return err
	}))
	return files
}

// prevented are ways by which a directory takes no writes. Each ends with the function that it returns.
var prevented = map[string]func(t *testing.T, dir string) (end func()){
	"read-only": func(t *testing.T, dir string) func() {
		remount := func(how string) {
			t.Helper()
			if out, err := exec.CommandContext(context.Background(), "mount", "-o", "remount,"+how, dir).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		remount("ro")
		return func() { remount("rw") }
	},
	"immutable": func(t *testing.T, dir string) func() {
		chattr := func(how string) {
			t.Helper()
			if out, err := exec.CommandContext(context.Background(), "chattr", "-R", how, dir).CombinedOutput(); err != nil {
				t.Skipf("%v: %s", err, out)
			}
		}
		chattr("+i")
		t.Cleanup(func() { chattr("-i") })
		return func() { chattr("-i") }
	},
}

// A volume whose disk takes no writes can be mounted: what it has is read, and the memory tier has the rest. The disk is left as it is until the volume is mounted
// again, though it may be written by then.
func TestMountWhereTheDiskTakesNoWrites(t *testing.T) {
	for how, prevent := range prevented {
		t.Run(how, func(t *testing.T) {
			d := newDisk(t, "ext4")
			old, fresh := keysOf(0, 300), keysOf(1000, 40)
			v := &volume{dir: d.point, point: suite.NewDir(t), log: filepath.Join(suite.NewDir(t), "log"), flags: []string{"--size", "80MiB"}}
			v.mount(t)
			e := v.connect(t, "model", 64<<10)
			for part := range slices.Chunk(old, 50) {
				_, _, err := e.put(t.Context(), part...)
				must(t, err)
			}
			must(t, e.close())
			v.end(t)
			end := prevent(t, d.point)
			before := tree(t, d.point)
			v, said := frozen(t, d.point)
			if !strings.Contains(said, "the disk took no writes") {
				t.Errorf("the mount does not say so: %q", said)
			}
			for life, names := 0, []string(nil); life < 4; life++ {
				names = append(names, fmt.Sprint("new-", life))
				v.finds(t, "model", old)
				v.stores(t, "model", keysOf(2000+100*life, 20))
				v.stores(t, names[life], fresh)
				for _, name := range names {
					v.finds(t, name, fresh)
				}
				if notes := strings.Join(v.status(t).KV.Notes, "\n"); !strings.Contains(notes, "the disk took no writes") {
					t.Errorf("the status does not say so: %q", notes)
				}
				if life == 1 {
					end()
				}
				if life < 3 {
					v.kill(t)
				}
			}
			if after := tree(t, d.point); !maps.Equal(before, after) {
				t.Errorf("the disk had %d names, and has %d: %v", len(before), len(after), slices.Sorted(maps.Keys(after)))
			}
			v.end(t)
			v = &volume{dir: d.point, point: suite.NewDir(t), log: v.log, flags: v.flags}
			v.mount(t)
			v.finds(t, "model", old)
			e = v.connect(t, "new-0", 64<<10)
			_, _, err := e.put(t.Context(), fresh...)
			must(t, err)
			if _, err := os.Stat(filepath.Join(d.point, "new-0", "slab")); err != nil {
				t.Error(err)
			}
			if notes := v.status(t).KV.Notes; len(notes) > 0 {
				t.Errorf("%q", notes)
			}
			v.end(t)
		})
	}
}

// So can one that is empty, as often as one likes. Without memory it is refused.
func TestMountOfAnEmptyReadOnlyDisk(t *testing.T) {
	d := newDisk(t, "ext4")
	end := prevented["read-only"](t, d.point)
	v, _ := frozen(t, d.point)
	v.stores(t, "model", keysOf(0, 20))
	other, _ := frozen(t, d.point)
	other.stores(t, "model", keysOf(20, 20))
	r := suite.Run(t, "kv", "mount", "--size", "80MiB", d.point, suite.NewDir(t))
	if r.Code != 1 || !strings.Contains(r.Stderr, "without --memory") {
		t.Errorf("without --memory, mount ends with %d: %s", r.Code, r.Stderr)
	}
	end()
	third := &volume{dir: d.point, point: suite.NewDir(t), log: v.log, flags: v.flags}
	third.mount(t)
	v.kill(t) // its next daemon leaves the disk to the other mount
	v.finds(t, "model", keysOf(0, 20))
	e := third.connect(t, "model", 64<<10)
	if found, err := e.get(t.Context(), keysOf(0, 40)...); err != nil || len(found) > 0 {
		t.Errorf("a volume has %q of another one's, %v", found, err)
	}
	must(t, e.close())
	third.end(t)
}

// A user mounts a directory that only root may write. The user's engines keep blocks in memory, and other users make no namespaces there.
func TestMountOfADirectoryOfAnotherUser(t *testing.T) {
	blackbox.NeedRoot(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("needs fusermount3")
	}
	private, err := blackbox.PublicFUSE()
	must(t, err)
	defer func() { must(t, private()) }()
	dir, point, logs := suite.NewDir(t), suite.NewDir(t), suite.NewDir(t)
	must(t, errors.Join(os.Chmod(dir, 0o755), os.Chown(point, nobody, nobody), os.Chown(logs, nobody, nobody)))
	v := &volume{Mount: suite.At(point), dir: dir, point: point, log: filepath.Join(logs, "log")}
	r := suite.RunAsNobody(t, "kv", "mount", "--size", "8MiB", "--memory", "4MiB", "--log-file", v.log, dir, point)
	if r.Code != 0 || !strings.Contains(r.Stderr, "permission denied") {
		t.Fatalf("mount ends with %d: %s", r.Code, r.Stderr)
	}
	defer func() {
		if r := suite.RunAsNobody(t, "umount", point); r.Code != 0 {
			t.Errorf("umount ends with %d: %s", r.Code, r.Stderr)
		}
	}()
	for range 2 {
		o := v.opens(t, nobody, "model", 4096, control.KVCreate|control.KVWrite)
		if !strings.HasSuffix(o.said, "reserved") {
			t.Errorf("its user: %s", o.said)
		}
		o.end()
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("the directory has %v, %v", names, err)
	}
	must(t, unix.Access(dir, unix.W_OK)) // of root: it is the user who may not write
}
