package volumetest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ChildVerb in the environment makes this program do one thing, perhaps as another user, and end.
const ChildVerb = "HBMFS_TEST_CHILD"

// As runs a verb of [ServeChild] as a user, and returns its output.
func As(t testing.TB, uid uint32, groups []uint32, verb string, args ...string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), ChildVerb+"="+verb)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// ServeChild acts for a test's child, and prints "ok" or the errno's name. is says whether this program is a child. verbs are those of a package
// beside "past".
func ServeChild(verbs map[string]func(args []string) error) (is bool) {
	verb := os.Getenv(ChildVerb)
	if verb == "" {
		return false
	}
	all := map[string]func(args []string) error{
		"past": func(args []string) error { return past(args[0], args[1]) }, // PATH STEP
	}
	maps.Copy(all, verbs)
	err := fmt.Errorf("unknown verb %q", verb)
	if do := all[verb]; do != nil {
		err = do(os.Args[1:])
	}
	var errno syscall.Errno
	switch {
	case err == nil:
		fmt.Println("ok")
	case errors.As(err, &errno):
		fmt.Println(unix.ErrnoName(errno))
	default:
		fmt.Println(err)
	}
	return true
}
