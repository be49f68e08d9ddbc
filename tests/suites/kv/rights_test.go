package kv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// tryOpen opens a namespace, pins and reserves what it can, and says how far it came: what KV_OPEN says, and whether its descriptors can write.
func tryOpen(told string) (said []string) {
	var root, name string
	var block int64
	var flags control.KVOpenFlags
	if _, err := fmt.Sscan(told, &root, &name, &block, &flags); err != nil {
		return []string{err.Error()}
	}
	word := func(err error) string {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return errno.Error()
		}
		return fmt.Sprint(err)
	}
	ctx := context.Background()
	e, err := connect(ctx, root, name, block, flags)
	if err != nil {
		return []string{"open:", word(err)}
	}
	said = []string{"open"}
	for _, f := range e.Files {
		_, err := f.WriteAt([]byte("x"), 0)
		again, againErr := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
		if againErr == nil {
			_ = again.Close() // it was only tried
		}
		said = append(said, fmt.Sprintf("[write: %s, again: %s]", word(err), word(againErr)))
	}
	slots, err := e.Lookup(ctx, [][]byte{[]byte("a")}, true)
	if err == nil && slots[0].Errno == 0 {
		said = append(said, "pinned")
	}
	slots, err = e.Reserve(ctx, []control.KVBlock{{Key: []byte("mine"), Length: 1}})
	if err == nil && slots[0].Errno == 0 {
		return append(said, "reserved")
	}
	return append(said, "reserve:", word(err))
}

// opener is a process that has tried to open a namespace.
type opener struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  string
}

// opens has a process of a user try it.
func (v *volume) opens(t testing.TB, uid uint32, name string, block int64, flags control.KVOpenFlags) *opener {
	t.Helper()
	o := &opener{cmd: exec.Command("/proc/self/exe")}
	o.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=open %s %s %d %d", childVerb, v.point, name, block, flags))
	o.cmd.Dir = "/"
	if uid != 0 {
		o.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	var err error
	o.stdin, err = o.cmd.StdinPipe()
	must(t, err)
	out, err := o.cmd.StdoutPipe()
	must(t, err)
	must(t, o.cmd.Start())
	o.said, err = bufio.NewReader(out).ReadString('\n')
	must(t, err)
	o.said = strings.TrimSpace(o.said)
	t.Cleanup(o.end)
	return o
}

func (o *opener) end() {
	_ = o.stdin.Close() // it may have been killed
	_ = o.cmd.Wait()    // the same
}

// nobody is the ordinary user of these tests, and other is another one.
const (
	nobody = 65534
	other  = 4711
)

// TestModesSayWhoMay has users open a namespace that its mode lets them read, or not.
func TestModesSayWhoMay(t *testing.T) {
	v := mount(t, "--size", "16MiB", "--memory", "4MiB")
	must(t, os.Chmod(v.dir, 0o777)) // everybody may make a namespace
	first := v.opens(t, nobody, "theirs", 4096, control.KVCreate|control.KVWrite)
	if want := "open [write: <nil>, again: permission denied] [write: <nil>, again: permission denied] reserved"; first.said != want {
		t.Errorf("its maker: %s, want %s", first.said, want)
	}
	if said := v.opens(t, other, "theirs", 4096, 0).said; said != "open: permission denied" {
		t.Errorf("another user: %s", said)
	}
	must(t, os.Chmod(filepath.Join(v.dir, "theirs", "space"), 0o644))
	readOnly := "open [write: bad file descriptor, again: read-only file system] [write: bad file descriptor, again: read-only file system] reserve: permission denied"
	for _, uid := range []uint32{other, 0} {
		if said := v.opens(t, uid, "theirs", 0, 0).said; said != readOnly && (uid == 0 || said != strings.ReplaceAll(readOnly, "read-only file system", "permission denied")) {
			t.Errorf("user %d to read: %s, want %s", uid, said, readOnly)
		}
	}
	if said := v.opens(t, other, "theirs", 4096, control.KVWrite).said; said != "open: permission denied" {
		t.Errorf("another user, to write: %s", said)
	}
	for what, said := range map[string]string{
		"another block size": v.opens(t, nobody, "theirs", 8192, control.KVWrite).said,
		"a path":             v.opens(t, nobody, "../theirs", 4096, control.KVCreate).said,
	} {
		if said != "open: invalid argument" {
			t.Errorf("%s: %s", what, said)
		}
	}
	if said := v.opens(t, nobody, "none", 4096, control.KVWrite).said; said != "open: no such file or directory" {
		t.Errorf("one that nobody made: %s", said)
	}
	must(t, os.Chmod(v.dir, 0o755))
	if said := v.opens(t, nobody, "more", 4096, control.KVCreate|control.KVWrite).said; said != "open: permission denied" {
		t.Errorf("one that the user may not make: %s", said)
	}
	if !blackbox.Within(patience, func() bool {
		var st syscall.Stat_t
		must(t, syscall.Stat(v.Path("theirs"), &st))
		return st.Mode&0o777 == 0o644 && st.Uid == nobody && st.Mode&syscall.S_IFMT == syscall.S_IFREG
	}) {
		t.Error("the entry of the mount has another mode")
	}
}

// TestTheDeadHoldNothing kills processes that have pins and reservations: these come back.
func TestTheDeadHoldNothing(t *testing.T) {
	v := mount(t, "--size", "16MiB")
	e := v.connect(t, "model", 4096)
	_, _, err := e.put(t.Context(), "a")
	must(t, err)
	o := v.opens(t, 0, "model", 4096, control.KVWrite)
	if !strings.HasSuffix(o.said, "pinned reserved") {
		t.Fatal(o.said)
	}
	if s := v.status(t).KV; s.Holding != 1 || s.Holders[0].PID != o.cmd.Process.Pid || s.Holders[0].Holds != 2 {
		t.Errorf("%+v", s.Holders)
	}
	busy, err := e.Reserve(t.Context(), []control.KVBlock{{Key: []byte("mine"), Length: 1}})
	if err != nil || busy[0].Errno != syscall.EBUSY {
		t.Errorf("%+v, %v", busy, err)
	}
	must(t, o.cmd.Process.Kill())
	_ = o.cmd.Wait() // by the signal
	began := time.Now()
	if !blackbox.Within(patience, func() bool { s := v.status(t).KV.Namespaces[0]; return s.Pins+s.Reservations == 0 }) {
		t.Fatalf("%+v", v.status(t).KV)
	}
	t.Logf("holds came back %v after the end of their process", time.Since(began))
	if stored, _, err := e.put(t.Context(), "mine"); err != nil || len(stored) != 1 {
		t.Errorf("%v, %v", stored, err)
	}
}

// TestNobodyHoldsAll: a user's pins have a limit, and a batch that has no room is refused block by block.
func TestNobodyHoldsAll(t *testing.T) {
	v := mount(t, "--size", "8MiB")
	e := v.connect(t, "model", 64<<10)
	var blocks []control.KVBlock
	for _, k := range keysOf(0, 200) {
		blocks = append(blocks, control.KVBlock{Key: []byte(k), Length: 5})
	}
	slots, err := e.Reserve(t.Context(), blocks)
	must(t, err)
	counts := map[syscall.Errno]int{}
	var tokens []uint64
	for _, s := range slots {
		counts[s.Errno]++
		if s.Errno == 0 {
			tokens = append(tokens, s.Token)
		}
	}
	if counts[0] == 0 || counts[0] > 64 || counts[syscall.EDQUOT]+counts[syscall.ENOSPC] == 0 || len(counts) > 3 {
		t.Errorf("%v", counts)
	}
	done, err := e.Release(t.Context(), 0, tokens...)
	must(t, err)
	if slices.ContainsFunc(done, func(d control.KVDone) bool { return d.Errno != 0 }) {
		t.Error(done)
	}
	if done, err = e.Release(t.Context(), 0, tokens[0]); err != nil || done[0].Errno != syscall.ENOENT {
		t.Errorf("a token that is over: %v, %v", done, err)
	}
	if done, err = e.Commit(t.Context(), []control.KVStored{{Token: tokens[0]}}); err != nil || done[0].Errno != syscall.ENOENT {
		t.Errorf("a token that is over: %v, %v", done, err)
	}
	if stored, _, err := e.put(t.Context(), keysOf(0, 40)...); err != nil || len(stored) != 40 {
		t.Errorf("%d stored, %v", len(stored), err)
	}
}

// TestCommands runs hbmfs kv, over a block that is damaged.
func TestCommands(t *testing.T) {
	v := mount(t, "--size", "16MiB", "--memory", "4MiB")
	e := v.connect(t, "model", 64<<10)
	_, _, err := e.put(t.Context(), keysOf(0, 20)...)
	must(t, err)
	at, err := e.Lookup(t.Context(), [][]byte{[]byte(keysOf(3, 1)[0])}, false)
	must(t, err)
	_, err = e.Files[at[0].Tier].WriteAt([]byte("damage"), int64(at[0].Slot)*e.SlotBytes+5)
	must(t, err)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"kv ls " + v.point, 0, "model"},
		{"kv stats " + v.point + " model", 0, "20 stored"},
		{"kv verify " + v.point, 3, "1 damaged and dropped"},
		{"kv verify --json " + v.point + " model", 0, `"damaged": 0`},
		{"kv clear " + v.point, 2, "--all"},
		{"kv ls " + v.dir, 1, "not below an hbmfs mount"},
		{"kv stats " + v.point + " none", 1, "no namespace"},
		{"kv clear " + v.point + " model", 0, "of 1 namespaces"},
		{"status " + v.point, 0, "namespace"},
	} {
		cmd := suite.Command(t.Context(), strings.Fields(c.args)...)
		out, _ := cmd.CombinedOutput() // the state says more
		if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%s ends with %d, want %d and %q: %s", c.args, cmd.ProcessState.ExitCode(), c.code, c.want, out)
		}
	}
}

// TestMountRefusals: what cannot be a KV volume is said in a sentence.
func TestMountRefusals(t *testing.T) {
	blackbox.NeedRoot(t)
	dir, point := suite.NewDir(t), suite.NewDir(t)
	for args, want := range map[string]string{
		"kv mount":                              "--size is missing",
		"kv mount --size 8MiB --disk-io fast":   "want direct or buffered",
		"kv mount --size 1000TiB":               "name a smaller --size",
		"kv mount --size 8MiB --memory 1000TiB": "more than this machine has free",
		"kv mount --checkpoints --size 8MiB":    "unknown flag --checkpoints",
		"kv mount --size 8MiB --uid 1":          "--uid is a flag of hbmfs mount",
		"mount --size 1GiB":                     "--size: it is a flag of hbmfs kv mount",
		"mount --kv --size 8MiB --uid 1":        "takes no --format, --select, --cache-dir, --uid",
	} {
		cmd := suite.Command(t.Context(), append(strings.Fields(args), dir, point)...)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: want %q: %s", args, want, out)
		}
	}
	if left := taken(dir); left > 1<<20 {
		t.Errorf("%d bytes are left in the directory", left)
	}
}
