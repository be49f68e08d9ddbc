package control_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// The table of permissions. Each reader is a real process with credentials of its own. It tries every row at the source,
// where the kernel answers, and by each way through the mount. No way may give anything that the source refuses. Every
// way gives everything that the source grants, but for the cells that less names: docs/guide/mounting.md and
// docs/reference/control-protocol.md list them.

// Owners and groups of the table. None of them needs to exist.
const (
	alice = 1001
	bob   = 1002
	carol = 1003
	team  = 4000 // a group that bob is a member of
)

// row is a shard of the table, in a directory of its own.
type row struct {
	name string // of the shard, in the row's directory
	make func(t *testing.T, dir string)
}

// shard writes the golden shard, and gives it an owner and a mode.
func shard(t *testing.T, path string, uid, gid int, mode os.FileMode) {
	t.Helper()
	data, err := os.ReadFile("../../data/testdata/llmc-gpt2/edu_fineweb_train_000001.bin")
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, data, 0o600))
	must(t, os.Chown(path, uid, gid))
	must(t, os.Chmod(path, mode))
}

// closing gives a directory an owner and a mode.
func closing(t *testing.T, dir string, uid, gid int, mode os.FileMode) {
	t.Helper()
	must(t, os.Chown(dir, uid, gid))
	must(t, os.Chmod(dir, mode))
}

// ace is an entry of an access control list, as include/uapi/linux/posix_acl_xattr.h of Linux has it.
type ace struct {
	tag, perm uint16
	id        uint32
}

const (
	userObj, user, groupObj, group, mask, other = 1, 2, 4, 8, 0x10, 0x20

	nobodyElse = math.MaxUint32 // the id of entries that name nobody
)

// everyWay are the ways through a mount.
var everyWay = []string{"open", "LOOKUP", "EXTENTS", "the view"}

// setACL writes an access control list as setfacl does.
func setACL(t *testing.T, path string, entries ...ace) {
	t.Helper()
	p := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		p = binary.LittleEndian.AppendUint16(p, e.tag)
		p = binary.LittleEndian.AppendUint16(p, e.perm)
		p = binary.LittleEndian.AppendUint32(p, e.id)
	}
	must(t, unix.Setxattr(path, "system.posix_acl_access", p, 0))
}

func fileRow(uid, gid int, mode os.FileMode) row {
	return row{"shard.bin", func(t *testing.T, dir string) { shard(t, filepath.Join(dir, "shard.bin"), uid, gid, mode) }}
}

func dirRow(uid, gid int, mode os.FileMode) row {
	return row{"in/shard.bin", func(t *testing.T, dir string) {
		shard(t, filepath.Join(dir, "in/shard.bin"), 0, 0, 0o644)
		closing(t, filepath.Join(dir, "in"), uid, gid, mode)
	}}
}

func aclRow(entries ...ace) row {
	return row{"shard.bin", func(t *testing.T, dir string) {
		shard(t, filepath.Join(dir, "shard.bin"), 0, team, 0o600)
		setACL(t, filepath.Join(dir, "shard.bin"), entries...)
	}}
}

func aclDirRow(entries ...ace) row {
	return row{"in/shard.bin", func(t *testing.T, dir string) {
		shard(t, filepath.Join(dir, "in/shard.bin"), 0, 0, 0o644)
		closing(t, filepath.Join(dir, "in"), 0, team, 0o700)
		setACL(t, filepath.Join(dir, "in"), entries...)
	}}
}

// linkRow links pub/l.bin to target, beside directories that are open (free), closed (priv) and open to team (team).
func linkRow(target string, more ...string) row {
	return row{"pub/l.bin", func(t *testing.T, dir string) {
		for _, name := range []string{"free/x.bin", "priv/x.bin", "team/x.bin"} {
			shard(t, filepath.Join(dir, name), 0, 0, 0o644)
		}
		must(t, os.Mkdir(filepath.Join(dir, "pub"), 0o755))
		must(t, os.Symlink(target, filepath.Join(dir, "pub/l.bin")))
		for i := 0; i < len(more); i += 2 {
			must(t, os.Symlink(more[i+1], filepath.Join(dir, more[i])))
		}
		closing(t, filepath.Join(dir, "priv"), 0, 0, 0o700)
		closing(t, filepath.Join(dir, "team"), 0, team, 0o750)
	}}
}

func permissionRows() map[string]row {
	return map[string]row{
		"mode-644":          fileRow(0, 0, 0o644),
		"mode-600":          fileRow(0, 0, 0o600),
		"mode-000":          fileRow(0, 0, 0),
		"mode-400-alice":    fileRow(alice, alice, 0o400),
		"mode-044-alice":    fileRow(alice, alice, 0o044),
		"mode-640-team":     fileRow(0, team, 0o640),
		"mode-604-team":     fileRow(0, team, 0o604), // everybody but the team
		"mode-440-alice":    fileRow(alice, team, 0o440),
		"mode-400-nobody":   fileRow(nobody, nobody, 0o400),
		"dir-755":           dirRow(0, 0, 0o755),
		"dir-700":           dirRow(0, 0, 0o700),
		"dir-711":           dirRow(0, 0, 0o711),
		"dir-744":           dirRow(0, 0, 0o744),
		"dir-750-team":      dirRow(0, team, 0o750),
		"dir-705-team":      dirRow(0, team, 0o705),
		"dir-077-alice":     dirRow(alice, alice, 0o077),
		"acl-user":          aclRow(ace{userObj, 6, nobodyElse}, ace{user, 4, alice}, ace{groupObj, 0, nobodyElse}, ace{mask, 4, nobodyElse}, ace{other, 0, nobodyElse}),
		"acl-group":         aclRow(ace{userObj, 6, nobodyElse}, ace{groupObj, 0, nobodyElse}, ace{group, 4, carol}, ace{mask, 4, nobodyElse}, ace{other, 0, nobodyElse}),
		"acl-not-alice":     aclRow(ace{userObj, 6, nobodyElse}, ace{user, 0, alice}, ace{groupObj, 4, nobodyElse}, ace{mask, 4, nobodyElse}, ace{other, 4, nobodyElse}),
		"acl-not-carols":    aclRow(ace{userObj, 6, nobodyElse}, ace{groupObj, 4, nobodyElse}, ace{group, 0, carol}, ace{mask, 4, nobodyElse}, ace{other, 4, nobodyElse}),
		"acl-masked":        aclRow(ace{userObj, 6, nobodyElse}, ace{user, 4, alice}, ace{groupObj, 4, nobodyElse}, ace{mask, 0, nobodyElse}, ace{other, 4, nobodyElse}),
		"acl-team":          aclRow(ace{userObj, 6, nobodyElse}, ace{user, 4, alice}, ace{groupObj, 4, nobodyElse}, ace{mask, 4, nobodyElse}, ace{other, 0, nobodyElse}),
		"acl-all":           aclRow(ace{userObj, 6, nobodyElse}, ace{user, 4, alice}, ace{groupObj, 4, nobodyElse}, ace{group, 4, carol}, ace{mask, 4, nobodyElse}, ace{other, 4, nobodyElse}),
		"acl-dir":           aclDirRow(ace{userObj, 7, nobodyElse}, ace{user, 5, alice}, ace{groupObj, 0, nobodyElse}, ace{mask, 5, nobodyElse}, ace{other, 0, nobodyElse}),
		"acl-dir-not-alice": aclDirRow(ace{userObj, 7, nobodyElse}, ace{user, 0, alice}, ace{groupObj, 5, nobodyElse}, ace{mask, 5, nobodyElse}, ace{other, 5, nobodyElse}),
		"link-free":         linkRow("../free/x.bin"),
		"link-priv":         linkRow("../priv/x.bin"),
		"link-team":         linkRow("../team/x.bin"),
		"link-through":      linkRow("../priv/../free/x.bin"),
		"link-hops":         linkRow("m.bin", "pub/m.bin", "../priv/x.bin"),
		"link-closed-hop":   linkRow("../priv/m.bin", "priv/m.bin", "../free/x.bin"),
		"link-dir-hop":      linkRow("d/x.bin", "pub/d", "../priv"),
		"link-free-hops":    linkRow("d/x.bin", "pub/d", "e", "pub/e", "../free"),
	}
}

// reader is a process that tries the table.
type reader struct{ name, as string } // as: the command that makes it what it is

const unmapped = "setpriv --reuid 1004 --regid 1004 --clear-groups --inh-caps -all "

func permissionReaders() []reader {
	const plain = " --inh-caps -all "
	return []reader{
		{"root", ""},
		{"root without capabilities", "setpriv --bounding-set -all --inh-caps -all"},
		{"root that may search", "setpriv --bounding-set -all,+dac_read_search --inh-caps -all"},
		{"root that may override", "setpriv --bounding-set -all,+dac_override --inh-caps -all"},
		{"root without them of the team", "setpriv --groups 4000 --bounding-set -all --inh-caps -all"},
		{"root of another user namespace", "unshare --user --map-root-user"},
		{"nobody", "setpriv --reuid 65534 --regid 65534 --clear-groups" + plain},
		{"alice", "setpriv --reuid 1001 --regid 1001 --clear-groups" + plain},
		{"bob of the team", "setpriv --reuid 1002 --regid 1002 --groups 4000" + plain},
		{"carol", "setpriv --reuid 1003 --regid 1003 --clear-groups" + plain},
		{"carol of the team", "setpriv --reuid 1003 --regid 4000 --clear-groups" + plain},
		{"alice who may search", "setpriv --reuid 1001 --regid 1001 --clear-groups --inh-caps -all,+dac_read_search --ambient-caps +dac_read_search"},
		{"one who is root elsewhere", unmapped + "unshare --user --map-root-user"},
	}
}

// tries are what came of one row: "ok", or an errno.
type tries struct{ Source, Mount, Lookup, Extents, View string }

// ways are what came of each of everyWay.
func (r tries) ways() [4]string { return [4]string{r.Mount, r.Lookup, r.Extents, r.View} }

func TestPermissions(t *testing.T) {
	blackbox.NeedRoot(t)
	args := permissionTable(t, func(source string) *mounted { return mount(t, source) })
	less := lessIsGranted()
	for at := range compareTable(t, args, permissionReaders(), less) {
		if less[at] {
			t.Errorf("%s grants %s to %s, and is listed as one that does not", at.way, at.row, at.who)
		}
	}
}

// TestPermissionsOfAnOrdinaryUsersMount has the mount made by one of the readers, whom alone the kernel lets in.
func TestPermissionsOfAnOrdinaryUsersMount(t *testing.T) {
	blackbox.NeedRoot(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("needs fusermount3")
	}
	private, err := blackbox.PublicFUSE()
	must(t, err)
	t.Cleanup(func() { must(t, private()) })
	args := permissionTable(t, func(source string) *mounted { return mountAs(t, nobody, source) })
	less := lessIsGranted()
	for name := range permissionRows() {
		for _, who := range permissionReaders() {
			for _, way := range everyWay {
				less[cell{name, who.name, way}] = less[cell{name, who.name, way}] || who.name != "nobody"
			}
		}
	}
	for _, way := range everyWay { // nobody may not list the directory, and so cannot mount what is in it
		less[cell{"dir-711", "nobody", way}] = true
	}
	compareTable(t, args, permissionReaders(), less)
}

// permissionTable makes the table and mounts it, and gives what a child is told of that.
func permissionTable(t *testing.T, mount func(source string) *mounted) (args []string) {
	t.Helper()
	for _, tool := range []string{"unshare", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s of util-linux", tool)
		}
	}
	source := suite.NewDir(t)
	args = []string{source, ""}
	for name, r := range permissionRows() {
		must(t, os.Mkdir(filepath.Join(source, name), 0o755))
		r.make(t, filepath.Join(source, name))
		args = append(args, name+"/"+r.name)
	}
	args[1] = mount(source).Path()
	return args
}

// cell is a row, a reader and a way.
type cell struct{ row, who, way string }

// compareTable has all readers try all rows, and gives the cells that are granted. A cell of less may be refused.
func compareTable(t *testing.T, args []string, readers []reader, less map[cell]bool) (granted map[cell]bool) {
	t.Helper()
	program := everybodysCopy(t)
	granted = map[cell]bool{}
	for _, who := range readers {
		for name, got := range tryTable(t, program, who, args) {
			if got.Source != "ok" && got.Source != "EACCES" {
				t.Errorf("%s, %s: at the source %s", name, who.name, got.Source)
			}
			for i, way := range everyWay {
				at := cell{strings.Split(name, "/")[0], who.name, way}
				switch came := got.ways()[i]; {
				case strings.Contains(came, control.ErrNoSocket.Error()): // no user namespaces: nothing to grant
				case got.Source != "ok" && came == "ok":
					t.Errorf("%s: the source refuses it to %s (%s), and %s gives it", at.row, at.who, got.Source, way)
				case got.Source == "ok" && came != "ok" && !less[at]:
					t.Errorf("%s: the source grants it to %s, and %s refuses it (%s)", at.row, at.who, way, came)
				case came == "ok":
					granted[at] = true
				}
			}
		}
	}
	t.Logf("%d rows, %d readers, %d grants", len(args)-2, len(readers), len(granted))
	return granted
}

// lessIsGranted are the cells in which a mount for all grants less than the source.
func lessIsGranted() map[cell]bool {
	less := map[cell]bool{}
	add := func(ways []string, who string, rows ...string) {
		for _, row := range rows {
			for _, way := range ways {
				less[cell{row, who, way}] = true
			}
		}
	}
	// A list's entries for users and groups have no place in a mode; users that are not named are in a class with those
	// that are.
	add(everyWay, "alice", "acl-user", "acl-team", "acl-dir", "acl-not-carols")
	add(everyWay, "carol", "acl-group")
	for _, who := range []string{"bob of the team", "carol of the team", "carol", "nobody", "one who is root elsewhere"} {
		add(everyWay, who, "acl-not-alice", "acl-dir-not-alice")
	}
	for _, who := range []string{"nobody", "one who is root elsewhere"} {
		add(everyWay, who, "acl-not-carols")
	}
	// A view, and a file behind a link, has the owner and the group of the file, not of its directories.
	add(everyWay[3:], "alice", "dir-705-team")
	for _, who := range []string{"bob of the team", "carol of the team"} {
		add(everyWay, who, "link-team")
		add(everyWay[3:], who, "dir-750-team")
	}
	for _, who := range []string{"carol", "nobody", "one who is root elsewhere"} {
		add(everyWay[3:], who, "dir-077-alice", "dir-705-team")
	}
	for _, who := range []string{"bob of the team", "carol of the team"} {
		add(everyWay[3:], who, "dir-077-alice")
	}
	// LOOKUP takes capabilities of root alone into account, and those of the daemon's user namespace alone.
	add(everyWay[1:2], "root of another user namespace", "mode-000")
	for row := range permissionRows() {
		if !slices.Contains([]string{"mode-644", "mode-400-alice", "mode-440-alice", "mode-604-team", "dir-755", "dir-711", "dir-705-team", "acl-masked", "acl-all", "link-free", "link-free-hops"}, row) {
			add(everyWay[1:2], "alice who may search", row)
		}
	}
	return less
}

// everybodysCopy puts this program where everybody can run it.
func everybodysCopy(t *testing.T) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	program := filepath.Join(suite.NewDir(t), "child")
	must(t, os.WriteFile(program, self, 0o755))
	return program
}

// tryTable has one reader try all rows.
func tryTable(t *testing.T, program string, who reader, args []string) (got map[string]tries) {
	t.Helper()
	command := append(append(strings.Fields(who.as), program), args...)
	cmd := exec.CommandContext(limited(t), command[0], command[1:]...)
	cmd.Env, cmd.Dir = append(os.Environ(), childVerb+"=table"), "/"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", who.name, err, out)
	}
	if err := json.Unmarshal(out, &got); err != nil || len(got) != len(args)-2 {
		t.Fatalf("%s: %v: %s", who.name, err, out)
	}
	return got
}

// childTable (SOURCE MOUNT NAME...) tries each name in every way.
func childTable(ctx context.Context, args []string) (string, error) {
	c, err := control.Dial(ctx, args[1], "table")
	if err == nil {
		defer func() { _ = c.Close() }() // it ends with this process
	}
	got, dialled := map[string]tries{}, err
	for _, name := range args[2:] {
		in := filepath.Join(args[1], name)
		view := filepath.Join(args[1], ".hbmfs/views", filepath.Dir(name), "tokens.bin")
		r := tries{Source: said(readOne(filepath.Join(args[0], name))), Mount: said(readOne(in)), View: said(readOne(view))}
		if r.Lookup, r.Extents = said(dialled), said(dialled); dialled == nil {
			r.Lookup, r.Extents = said(readLookup(ctx, c, name)), said(readExtents(ctx, c, in))
		}
		got[name] = r
	}
	out, err := json.Marshal(got)
	return string(out), err
}

// said names the errno of an error.
func said(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func readOne(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = f.ReadAt(make([]byte, 100), 0)
	return errors.Join(err, f.Close())
}

func readLookup(ctx context.Context, c *control.Client, name string) error {
	for f, err := range c.Lookup(ctx, []string{name}) {
		if err != nil {
			return err
		}
		_, err := f.ReadAt(make([]byte, 100), 0)
		return err
	}
	return errors.New("no answer")
}

func readExtents(ctx context.Context, c *control.Client, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	for b, err := range control.Batches(f, 0, 100, true) {
		if err != nil {
			return err
		}
		files, err := c.Redeem(ctx, b.Ticket, b.Objects())
		if err != nil {
			return err
		}
		if files[0].Err != nil {
			return files[0].Err
		}
		_, err = files[0].File.ReadAt(make([]byte, 100), b.Extents[0].Offset)
		return errors.Join(err, files[0].File.Close(), c.Release(ctx, files[0].Object))
	}
	return fmt.Errorf("%s has no extents", path)
}
