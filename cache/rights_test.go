package cache

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// someone is a user, as the kernel sees one.
type someone struct {
	uid    uint32
	groups map[uint32]bool
}

// everyone yields all users of a small world: three of them, in each choice of three groups.
func everyone(yield func(someone) bool) {
	for uid := range uint32(3) {
		for of := range 8 {
			s := someone{uid, map[uint32]bool{0: of&1 != 0, 1: of&2 != 0, 2: of&4 != 0}}
			if !yield(s) {
				return
			}
		}
	}
}

// may is acl_permission_check of Linux, fs/namei.c, for a file without an access control list.
func (s someone) may(r Rights, right uint16) bool {
	switch {
	case s.uid == r.UID:
		right <<= 6
	case s.groups[r.GID]:
		right <<= 3
	}
	return r.Perm&right == right
}

// TestCertain shows a file that is reached by another for all modes and owners of a small world: nobody may read it who
// has no right at that other, and what all of a class have is kept.
func TestCertain(t *testing.T) {
	for mode := range uint16(8) {
		perm := mode&4<<4 | mode&2<<2 | mode&1
		for owners := range 81 {
			uid, gid := uint32(owners%3), uint32(owners/3%3)
			r := Rights{perm, uint32(owners / 9 % 3), uint32(owners / 27)}
			classes := r.Certain(uid, gid, ToPass)
			all := map[uint16]bool{}
			for who := range everyone {
				class := uint16(0o004)
				switch {
				case who.uid == uid:
					class = 0o400
				case who.groups[gid]:
					class = 0o040
				}
				has, known := all[class]
				all[class] = (has || !known) && who.may(r, ToPass)
				if classes&class != 0 && !who.may(r, ToPass) {
					t.Fatalf("%+v, file of %d:%d: user %+v is let in", r, uid, gid, who)
				}
			}
			for class, has := range all {
				if has && classes&class == 0 {
					t.Errorf("%+v, file of %d:%d: class %o is kept out, though all of it have the right", r, uid, gid, class)
				}
			}
		}
	}
}

func TestOnly(t *testing.T) {
	for _, c := range []struct{ perm, classes, want uint16 }{
		{0o755, 0o444, 0o755}, {0o755, 0o400, 0o700}, {0o755, 0o004, 0o205}, {0o644, 0, 0o200}, {0o666, 0o440, 0o662},
	} {
		if got := only(c.perm, c.classes); got != c.want {
			t.Errorf("only(%o, %o) = %o, want %o", c.perm, c.classes, got, c.want)
		}
	}
}

// acl makes an access control list of tags, rights and ids.
func acl(entries ...uint32) []byte {
	p := binary.LittleEndian.AppendUint32(nil, 2)
	for ; len(entries) > 0; entries = entries[3:] {
		p = binary.LittleEndian.AppendUint16(p, uint16(entries[0]))
		p = binary.LittleEndian.AppendUint16(p, uint16(entries[1]))
		p = binary.LittleEndian.AppendUint32(p, entries[2])
	}
	return p
}

// mayByACL is posix_acl_permission of Linux, fs/posix_acl.c, for one right. Where the mask is empty, Linux asks the mode.
func (s someone) mayByACL(list []byte, uid, gid uint32, right uint16) bool {
	mask, found, granted, others := uint16(7), false, false, uint16(0)
	for p := list[4:]; len(p) > 0; p = p[8:] {
		if binary.LittleEndian.Uint16(p) == aclMask {
			mask = binary.LittleEndian.Uint16(p[2:])
		}
	}
	for p := list[4:]; len(p) > 0; p = p[8:] {
		tag, rights, id := binary.LittleEndian.Uint16(p), binary.LittleEndian.Uint16(p[2:]), binary.LittleEndian.Uint32(p[4:])
		switch {
		case tag == aclUserObj && s.uid == uid:
			return rights&right != 0
		case tag == aclUser && s.uid == id:
			return rights&mask&right != 0
		case tag == aclGroupObj && s.groups[gid], tag == aclGroup && s.groups[id]:
			found, granted = true, granted || rights&mask&right != 0
		case tag == aclOther:
			others = rights
		}
	}
	if found {
		return granted
	}
	return others&right != 0
}

// FuzzAccessControlList compares the mode that is made of a list with what Linux says of each user of a small world.
func FuzzAccessControlList(f *testing.F) {
	f.Add(uint16(0o640), []byte{0o4, 1, 2, 0o0})
	f.Add(uint16(0o644), []byte{0o0, 0o4, 0o7, 0o4, 0o4, 0o4})
	f.Fuzz(func(t *testing.T, perm uint16, rights []byte) {
		at := func(i int) uint32 {
			if i < len(rights) {
				return uint32(rights[i] & 7)
			}
			return 0
		}
		const nobody = 1<<32 - 1
		entries := []uint32{aclUserObj, uint32(perm >> 6 & 7), nobody}
		named := 0
		for i, tag := range []uint32{aclUser, aclUser, aclGroup, aclGroup} { // in the kernel's order, but for the group's own
			if i == 2 {
				entries = append(entries, aclGroupObj, at(8), nobody)
			}
			if at(i) != 0 || at(i+4) != 0 {
				entries, named = append(entries, tag, at(i), uint32(i%2+1)), named+1
			}
		}
		if named > 0 {
			entries = append(entries, aclMask, uint32(perm>>3&7), nobody)
		}
		entries = append(entries, aclOther, uint32(perm&7), nobody)
		list := acl(entries...)
		r := Rights{perm & 0o777 & certainOf(list), 0, 0}
		for who := range everyone {
			for _, right := range []uint16{ToRead, ToPass} {
				if who.may(r, right) && !who.mayByACL(list, 0, 0, right) {
					t.Errorf("mode %o, list %v, shown as %o: user %+v has right %o", perm, entries, r.Perm, who, right)
				}
			}
		}
	})
}

func TestAccessControlLists(t *testing.T) {
	const nobody = 1<<32 - 1
	whole := acl(aclUserObj, 6, nobody, aclUser, 4, 7, aclGroupObj, 4, nobody, aclGroup, 4, 8, aclMask, 4, nobody, aclOther, 4, nobody)
	if got := certainOf(whole); got != 0o744 {
		t.Errorf("a list that grants to all: %o", got)
	}
	for n := range whole { // cut anywhere it says less
		if got := certainOf(whole[:n]); got&^0o744 != 0 {
			t.Errorf("the first %d bytes of it: %o", n, got)
		}
	}
	for what, list := range map[string][]byte{
		"an unknown version": append([]byte{3}, whole[1:]...), "an unknown tag": acl(aclUserObj, 6, nobody, 0x40, 4, nobody, aclOther, 4, nobody), "nothing": nil,
	} {
		if got := certainOf(list); got != 0o700 {
			t.Errorf("%s: %o, want the owner's alone", what, got)
		}
	}
}

func TestListingHasWhatAccessControlListsLeave(t *testing.T) {
	const nobody = 1<<32 - 1
	root := t.TempDir()
	write(t, filepath.Join(root, "dir", "listed"), "1")
	write(t, filepath.Join(root, "dir", "plain"), "1")
	write(t, filepath.Join(root, "dir", "many"), "1")
	for _, name := range []string{"dir", "dir/listed"} {
		list := acl(aclUserObj, 7, nobody, aclUser, 5, 7, aclGroupObj, 0, nobody, aclMask, 5, nobody, aclOther, 5, nobody)
		if err := unix.Setxattr(filepath.Join(root, name), aclName, list, 0); errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("needs a filesystem with access control lists")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	entries := []uint32{aclUserObj, 6, nobody}
	for i := range uint32(100) { // more than there is room for at first
		entries = append(entries, aclUser, 0, 1000+i)
	}
	entries = append(entries, aclGroupObj, 4, nobody, aclMask, 4, nobody, aclOther, 4, nobody)
	if err := unix.Setxattr(filepath.Join(root, "dir", "many"), aclName, acl(entries...), 0); err != nil {
		t.Fatal(err)
	}
	_, l := open(t, root)
	got := map[string]uint16{}
	for _, o := range l.Objects {
		got[o.Name] = o.Perm
	}
	got["dir"] = l.Dirs[1].Perm
	for name, want := range map[string]uint16{"dir": 0o705, "dir/listed": 0o705, "dir/plain": 0o644, "dir/many": 0o600} {
		if got[name] != want {
			t.Errorf("%s has %o, want %o", name, got[name], want)
		}
	}
}

// TestLinkedFilesTakeRightsFromTheWay has links go by directories that not everybody may pass.
func TestLinkedFilesTakeRightsFromTheWay(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"pub/a", "free/deep", "closed", "tmp"} {
		write(t, filepath.Join(root, dir, "x"), "1")
	}
	for link, target := range map[string]string{
		"pub/free": "../free/deep/x", "pub/closed": "../closed/x", "pub/by": "../closed/../free/deep/x", "pub/hop": "hop2", "pub/hop2": "a/../../closed/x",
		"pub/dir": "../closed", "pub/in": "dir/x", "closed/out": "../free/deep/x", "pub/out": "../closed/out", "pub/own": "a/x", "pub/slash": "a/x/", "pub/dot": "./a/./x", "tmp/theirs": "../free/deep/x",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Join(root, "closed"), 0o700), os.Chmod(filepath.Join(root, "tmp"), os.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	foreign := os.Geteuid() == 0 // whose link is in tmp
	if foreign {
		if err := os.Lchown(filepath.Join(root, "tmp/theirs"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	_, l := open(t, root)
	want := map[string]uint16{
		"pub/free": 0o644, "pub/closed": 0o600, "pub/by": 0o600, "pub/hop": 0o600, "pub/hop2": 0o600, "pub/in": 0o600, "pub/out": 0o600,
		"closed/out": 0o644, "pub/own": 0o644, "pub/dot": 0o644,
	}
	if foreign {
		want["tmp/theirs"] = 0o200
	}
	got := map[string]uint16{}
	for _, o := range l.Objects {
		got[o.Name] = o.Perm
	}
	for name, perm := range want {
		if got[name] != perm {
			t.Errorf("%s has %o, want %o", name, got[name], perm)
		}
	}
	if len(l.Links) != 1 || len(l.Problems) != 1 || l.Problems[0].Object != "pub/slash" {
		t.Errorf("links %+v, problems %+v", l.Links, l.Problems)
	}
}

// TestFilesystemsWithoutLists keeps the modes of files where there are no access control lists.
func TestFilesystemsWithoutLists(t *testing.T) {
	d, err := OpenDir("/proc/sys/fs", 2)
	if err != nil {
		t.Skipf("needs proc: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	o, err := d.Object("file-max")
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, "file-max", &st, 0); err != nil {
		t.Fatal(err)
	}
	dir, err := d.root.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }() // opened for reading
	if got := d.perm(int(dir.Fd()), "file-max", &st); got != o.Perm || got&0o077 == 0 {
		t.Errorf("file-max has %o, want %o", got, o.Perm)
	}
	if _, known := d.noACL.Load(st.Dev); !known {
		t.Error("the filesystem is asked for each file")
	}
	other := st
	other.Dev++ // a file of another device, of which nothing is known
	if got := d.perm(int(dir.Fd()), "file-max", &other); got != o.Perm&0o700 {
		t.Errorf("a file of another device has %o", got)
	}
}
