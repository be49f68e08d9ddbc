package files_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	osuser "os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// moved says how many bytes the daemon has spliced and copied so far.
type moved struct {
	Spliced int64 `json:"spliced_bytes"`
	Copied  int64 `json:"copied_bytes"`
}

func parseMoved(t *testing.T, status []byte) moved {
	t.Helper()
	var s struct{ Counters moved }
	must(t, json.Unmarshal(status, &s))
	return s.Counters
}

// Reads of 1 MiB, past the page cache and by it, are spliced where their bytes lie in one shard, many at once, too. No
// line of the log speaks of them.
func TestLargeReadsAreSpliced(t *testing.T) {
	source, stream := mounttest.ShardedTokens(t, suite, 2, 20<<20)
	m := mount(t, source, "--read-ahead", fmt.Sprint(4<<20))
	view := m.Path(".hbmfs", "views", "tokens.bin")
	got, err := mounttest.ReadPastCache(view)
	if err != nil || !bytes.Equal(got, stream) {
		t.Errorf("reading past the page cache: %v, or wrong bytes", err)
	}
	var g errgroup.Group
	g.SetLimit(16)
	for i := range 64 {
		g.Go(func() error {
			part := make([]byte, 1<<20)
			f, err := os.Open(view)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // opened for reading: nothing is lost
			if _, err := f.ReadAt(part, int64(i)<<20+100); err != nil {
				return err
			}
			if !bytes.Equal(part, stream[i<<20+100:][:1<<20]) {
				return errors.New("wrong bytes")
			}
			return nil
		})
	}
	must(t, g.Wait())
	status, err := os.ReadFile(m.Path(".hbmfs", "status"))
	must(t, err)
	if c := parseMoved(t, status); c.Spliced < 9*int64(len(stream))/10 || c.Copied > int64(len(stream))/4 {
		t.Errorf("of %d bytes that were read twice at most, %d were spliced and %d copied", len(stream), c.Spliced, c.Copied)
	}
	if log := m.LogText(t); strings.Contains(log, "plice") || strings.Contains(log, "level=WARN") {
		t.Errorf("the log speaks of reads:\n%s", log)
	}
}

// Reads that are copied, as those of strided views are, cost no line either.
func TestLargeReadsThatAreCopied(t *testing.T) {
	source, stream := mounttest.ShardedTokens(t, suite, 40, 30_000) // every read crosses borders
	m := mount(t, source)
	got, err := mounttest.ReadPastCache(m.Path(".hbmfs", "views", "tokens.bin"))
	if err != nil || !bytes.Equal(got, stream) {
		t.Errorf("%v, or wrong bytes", err)
	}
	if log := m.LogText(t); strings.Contains(log, "plice") || strings.Contains(log, "level=WARN") {
		t.Errorf("the log speaks of reads:\n%s", log)
	}
}

// An ordinary user's reads are spliced as well. Where the user's programs hold all the pipes that the kernel gives one
// user, reads are copied, in silence.
func TestLargeReadsOfAnOrdinaryUser(t *testing.T) {
	blackbox.NeedRoot(t)
	mounttest.MakeFUSEPublic(t)
	other, err := osuser.Lookup("bin") // of no other test: the limit is one for all of a user's programs
	if err != nil {
		t.Skip(err) // and fusermount3 wants a name
	}
	uid, err := strconv.ParseUint(other.Uid, 10, 32)
	must(t, err)
	user := int(uid)
	for _, hog := range []bool{false, true} {
		source, _ := mounttest.ShardedTokens(t, suite, 1, 10<<20)
		point, logs := suite.NewDir(t), suite.NewDir(t)
		must(t, errors.Join(os.Chown(point, user, user), os.Chown(logs, user, user)))
		if hog {
			stop := holdPipes(t, uint32(user))
			defer stop()
		}
		m := &mounted{&blackbox.Mounted{Mount: suite.At(point), Source: source, Point: point, Log: logs + "/log"}}
		as := func(cmd *exec.Cmd) *exec.Cmd {
			cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
			return cmd
		}
		if r := suite.RunCommand(t, as(suite.Command(t.Context(), "mount", "--log-file", m.Log, source, point))); r.Code != 0 {
			t.Fatalf("a user mounts: exit code %d: %s", r.Code, r.Stderr)
		}
		m.PID, err = m.DaemonPID()
		must(t, err)
		dd := as(exec.CommandContext(t.Context(), "dd", "if="+m.Path(".hbmfs/views/tokens.bin"), "of=/dev/null", "bs=1M", "iflag=direct"))
		if said, err := dd.CombinedOutput(); err != nil {
			t.Errorf("a user reads: %v: %s", err, said)
		}
		status, err := as(exec.CommandContext(t.Context(), "cat", m.Path(".hbmfs", "status"))).Output()
		must(t, err)
		c := parseMoved(t, status)
		if spliced := c.Spliced > c.Copied; spliced == hog {
			t.Errorf("%d bytes are spliced and %d copied, with all pipes taken: %v", c.Spliced, c.Copied, hog)
		}
		if log := m.LogText(t); strings.Contains(log, "plice") || strings.Contains(log, "level=WARN") {
			t.Errorf("the log speaks of reads:\n%s", log)
		}
		m.End(t)
	}
}

// holdPipes has a program of the user hold as large pipes as the user may have.
func holdPipes(t *testing.T, user uint32) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), mounttest.ChildVerb+"=pipes")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = in.Close() // which is what it waits for
		_ = cmd.Wait() // nothing is to be learned from it
	}
}

// takePipes makes pipes of 1 MiB until there are no more, says so, and waits for its standard input to end.
func takePipes() error {
	for {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, 1<<20); err != nil {
			break
		}
	}
	fmt.Println("held")
	_, err := os.Stdin.Read(make([]byte, 1))
	return err
}
