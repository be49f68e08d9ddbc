package mounttest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"golang.org/x/sys/unix"
)

// ChildVerb in the environment makes this program do one thing and end, for acts that need another user, or may die.
const ChildVerb = "HBMFS_TEST_CHILD"

// RunChild acts for a test's child, prints "ok" or the error, and returns the exit code. The result `is` tells whether this is a child. verbs are
// those of a package beside the ones that all have.
func RunChild(verbs map[string]func(args []string) error) (code int, is bool) {
	verb := os.Getenv(ChildVerb)
	if verb == "" {
		return 0, false
	}
	all := map[string]func(args []string) error{
		"compare": func(args []string) error { return CompareTrees(args[0], args[1]) },     // SOURCE MOUNT
		"list":    func(args []string) error { _, err := os.ReadDir(args[0]); return err }, // DIRECTORY
		"read":    func(args []string) error { return readWhole(args[0]) },                 // FILE
		"later":   func(args []string) error { return readLater(args[0]) },                 // FILE
		"touch":   func(args []string) error { return touchMapped(args[0], args[1]) },      // FILE OFFSET
	}
	maps.Copy(all, verbs)
	err := fmt.Errorf("child: unknown verb %q", verb)
	if do := all[verb]; do != nil {
		err = do(os.Args[1:])
	}
	if err != nil {
		fmt.Println(err)
		return 1, true
	}
	fmt.Println("ok")
	return 0, true
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
	data, err := MapFile(path)
	if err != nil {
		return err
	}
	fmt.Printf("byte %d\n", data[off])
	return unix.Munmap(data)
}

// Child runs this program again for one thing, as an ordinary user if asked to, and returns its output.
func Child(t *testing.T, ordinary bool, verb string, args ...string) (said string, ok bool) {
	t.Helper()
	// Through /proc, since an ordinary user cannot reach where go test builds.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), ChildVerb+"="+verb, "GOTRACEBACK=none")
	cmd.Dir = "/"
	if ordinary {
		cmd.SysProcAttr = blackbox.AsNobody()
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run a child: %v", err)
	}
	return string(bytes.TrimSpace(out)), err == nil
}

// ReadAs tells how reading a file ends for root or for nobody: "ok", or the errno's name.
func ReadAs(t *testing.T, ordinary bool, path string) string {
	t.Helper()
	said, _ := Child(t, ordinary, "read", path)
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
