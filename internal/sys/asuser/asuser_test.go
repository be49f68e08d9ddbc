package asuser

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root may act as others")
	}
}

func TestTheKernelDecides(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	for p := dir; p != "/"; p = filepath.Dir(p) { // the user must come there
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			if err := os.Chmod(p, info.Mode()|0o011); err != nil {
				t.Fatal(err)
			}
		}
	}
	user := User{UID: 4711, GID: 4712, Groups: []uint32{4713}}
	make := func(name string) error {
		return Do(user, func() error {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			return f.Close()
		})
	}
	if err := make("refused"); !errors.Is(err, syscall.EACCES) {
		t.Errorf("in root's directory: %v, want EACCES", err)
	}
	if err := errors.Join(os.Chown(dir, 0, 4713), os.Chmod(dir, 0o770)); err != nil {
		t.Fatal(err)
	}
	if err := make("theirs"); err != nil {
		t.Fatalf("in a directory of a supplementary group: %v", err)
	}
	info, err := os.Stat(filepath.Join(dir, "theirs"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 4711 || st.Gid != 4712 {
		t.Errorf("the file is of %d:%d", st.Uid, st.Gid)
	}
}

func TestCapabilitiesAreGivenUp(t *testing.T) {
	needRoot(t)
	for _, uid := range []uint32{0, 4711} {
		err := Do(User{UID: uid}, func() error {
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var caps [2]unix.CapUserData
			if err := unix.Capget(&head, &caps[0]); err != nil {
				return err
			}
			if caps[0].Effective&fileCapabilities != 0 {
				t.Errorf("user %d: %#x", uid, caps[0].Effective)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestThreadsHaveTheirRightsBack(t *testing.T) {
	needRoot(t)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			err := Do(User{UID: uint32(5000 + i), GID: 7}, func() error {
				if fsuid() != uint32(5000+i) {
					t.Errorf("acts as %d, want %d", fsuid(), 5000+i)
				}
				return os.ErrClosed
			})
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("its error is %v", err)
			}
			if fsuid() != 0 {
				t.Errorf("the caller has become %d", fsuid())
			}
		})
	}
	all.Wait()
	if list, err := groups(); err != nil || len(list) != len(mustGroups(t)) {
		t.Errorf("groups are %v, %v", list, err)
	}
}

// TestCallersGroupsCountLast: a caller's supplementary groups are asked for where nothing else does, and root keeps all that root may.
func TestCallersGroupsCountLast(t *testing.T) {
	needRoot(t)
	ran := 0
	as := func() error {
		ran++
		list, err := groups()
		if err != nil {
			return err
		}
		if fsuid() != 4711 || ran == 1 && len(list) > 0 {
			t.Errorf("run %d as %d of %v", ran, fsuid(), list)
		}
		return unix.EACCES
	}
	mine := mustGroups(t)
	if err := Caller(4711, 4712, uint32(os.Getpid()), as); !errors.Is(err, unix.EACCES) {
		t.Error(err)
	}
	if want := min(1+len(mine), 2); ran != want {
		t.Errorf("it ran %d times, want %d", ran, want)
	}
	err := Caller(0, 4712, 0, func() error {
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&head, &caps[0]); err != nil {
			return err
		}
		if gid, _ := unix.SetfsgidRetGid(-1); gid != 4712 || caps[0].Effective&(1<<unix.CAP_CHOWN) == 0 {
			t.Errorf("root of a group has the group %d and the capabilities %#x", gid, caps[0].Effective)
		}
		return nil
	})
	if gid, _ := unix.SetfsgidRetGid(-1); err != nil || gid != os.Getegid() {
		t.Errorf("root is of group %d afterwards: %v", gid, err)
	}
	for _, u := range []User{{UID: math.MaxUint32}, {GID: math.MaxUint32}} {
		if err := Do(u, func() error { return nil }); !errors.Is(err, unix.EOVERFLOW) {
			t.Errorf("a user without a number: %v", err)
		}
	}
}

func TestAPanicGivesBack(t *testing.T) {
	needRoot(t)
	func() {
		defer func() { _ = recover() }()
		_ = Do(User{UID: 4711, GID: 4711}, func() error { panic("test") })
	}()
	if fsuid() != 0 {
		t.Errorf("the caller has become %d", fsuid())
	}
}

func mustGroups(t *testing.T) []int {
	t.Helper()
	list, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestAnOrdinaryUserIsOnlyHimself(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may act as anybody")
	}
	ran := false
	if err := Do(User{UID: uint32(os.Geteuid())}, func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("as himself: %v", err)
	}
	if err := Do(User{UID: 1 + uint32(os.Geteuid())}, func() error { return nil }); !errors.Is(err, ErrOther) {
		t.Errorf("as another: %v", err)
	}
}

// fsuid is the user as whom this thread makes files and opens them: outside of Do, the process's effective user.
func fsuid() uint32 {
	uid, _ := unix.SetfsuidRetUid(-1) // which changes nothing
	return uint32(uid)
}
