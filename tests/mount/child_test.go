package mount_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/mount/mounttest"
)

// childVerb in the environment makes this program do one thing and end: what must happen as another user, or may die.
const childVerb = "HBMFS_TEST_CHILD"

// runChild does what a test asked of its child. It prints "ok", or what is wrong.
func runChild(verb string, args []string) (code int) {
	var err error
	switch verb {
	case "compare": // SOURCE MOUNT
		err = mounttest.CompareTrees(args[0], args[1])
	case "list": // DIRECTORY
		_, err = os.ReadDir(args[0])
	case "read": // FILE
		err = readWhole(args[0])
	case "later": // FILE
		err = readLater(args[0])
	case "touch": // FILE OFFSET
		err = touchMapped(args[0], args[1])
	case "jam": // MOUNTPOINT
		err = serveJammed(args[0])
	case "bypass": // MOUNT NAME
		err = bypass(args[0], args[1])
	case "signalled": // HOW FILE
		err = signalled(args[0], args[1])
	case "pipes":
		err = takePipes()
	default:
		err = fmt.Errorf("child: unknown verb %q", verb)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ok")
	return 0
}

// readWhole reads a file and says by its name with which errno that failed.
func readWhole(path string) error {
	_, err := os.ReadFile(path)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errors.New(unix.ErrnoName(errno))
	}
	return err
}

// touchMapped reads one byte of a mapping of the file.
func touchMapped(path, offset string) error {
	off, err := strconv.Atoi(offset)
	if err != nil {
		return err
	}
	data, err := mounttest.MapFile(path)
	if err != nil {
		return err
	}
	fmt.Printf("byte %d\n", data[off])
	return unix.Munmap(data)
}

// child runs this program again for one thing, as an ordinary user if asked to, and returns what it said.
func child(t *testing.T, ordinary bool, verb string, args ...string) (said string, ok bool) {
	t.Helper()
	// Through /proc, since an ordinary user cannot reach where go test builds.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), childVerb+"="+verb, "GOTRACEBACK=none")
	cmd.Dir = "/"
	if ordinary {
		cmd.SysProcAttr = asNobody()
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run a child: %v", err)
	}
	return string(bytes.TrimSpace(out)), err == nil
}

func asNobody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// readAs tells how reading a file ends for root or for nobody: "ok", or the errno's name.
func readAs(t *testing.T, ordinary bool, path string) string {
	t.Helper()
	said, _ := child(t, ordinary, "read", path)
	return strings.TrimSpace(said)
}

// readLater opens a file, says so, waits for a line on standard input, and reads the file's second half.
func readLater(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	info, err := f.Stat()
	if err != nil {
		return err
	}
	fmt.Println("open")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	_, err = f.ReadAt(make([]byte, info.Size()/2), info.Size()/2)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errors.New(unix.ErrnoName(errno))
	}
	return err
}

// changeUnderReader runs change while nobody has shard.bin of the mount open, and returns how its reading ends then.
func changeUnderReader(t *testing.T, m *mounted, change func()) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", m.Path("shard.bin"))
	cmd.Env = append(os.Environ(), childVerb+"=later")
	cmd.Dir = "/"
	cmd.SysProcAttr = asNobody()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	change()
	_, err = in.Write([]byte("\n"))
	must(t, err)
	said, err := lines.ReadString('\n')
	must(t, err)
	_ = cmd.Wait() // what it said is what counts
	return strings.TrimSpace(said)
}
