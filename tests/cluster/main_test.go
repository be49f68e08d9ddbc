// Package cluster_test runs hbmfs in a real cluster of one node: etcd, Kubernetes' own programs, containerd and runc, and the chart
// installed by Helm. `make test-cluster` builds what it needs; HBMFS_CLUSTER names the directory of all programs.
//
// All of it is in namespaces of its own (mount, PID, network, IPC, UTS, cgroup), with directories of its own on /var/lib/kubelet
// and /var/lib/hbmfs, so that it neither sees nor changes a kubelet of the machine. The first process of the PID namespace is killed
// when the test ends, at Ctrl-C too: every process and mount of the cluster goes with it. What is left then, control groups and a
// directory, is removed.
//
// The tests use one cluster, one after the other, in the order of their files' names.
package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	programsVar = "HBMFS_CLUSTER"      // directory of the programs
	workVar     = "HBMFS_CLUSTER_WORK" // of the process in the namespaces: its directory
)

// patience bounds every wait. Nothing that works waits for its end.
const patience = 4 * time.Minute

// node is the only one of the cluster. TestMain makes it.
var node *cluster

func TestMain(m *testing.M) {
	programs := os.Getenv(programsVar)
	if programs == "" {
		fmt.Println("make test-cluster runs these tests: they need the programs of a cluster (" + programsVar + ")")
		os.Exit(0)
	}
	var code int
	var err error
	if work := os.Getenv(workVar); work != "" {
		code, err = inside(m, programs, work)
	} else {
		code, err = outside()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		code = 1
	}
	os.Exit(code)
}

// inside runs the tests in the namespaces.
func inside(m *testing.M, programs, work string) (code int, err error) {
	node = &cluster{programs: programs, work: work}
	if err := errors.Join(node.enter(), node.start()); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// outside makes the namespaces, and removes what outlives them.
func outside() (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("a cluster needs root")
	}
	groups, err := controlGroups()
	if err != nil {
		return 1, err
	}
	work, err := os.MkdirTemp(os.Getenv("HBMFS_CLUSTER_DIR"), "hbmfs-cluster-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, removeGroups(groups), os.RemoveAll(work)) }()
	if err := makeGroups(groups); err != nil {
		return 1, err
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	args := []string{"-c", enter}
	for _, g := range groups {
		args = append(args, g.dir)
	}
	args = append(append(args, "--", self), os.Args[1:]...)
	runtime.LockOSThread() // the death of this thread is what the kernel tells of
	cmd := exec.Command("sh", append([]string{args[0], args[1], "sh"}, args[2:]...)...)
	cmd.Env = append(os.Environ(), workVar+"="+work)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // Ctrl-C is for this process
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	ended := make(chan struct{})
	go func() { // ends with the namespaces
		defer close(ended)
		err = cmd.Wait()
	}()
	select {
	case <-ended:
	case s := <-signals:
		_ = cmd.Process.Kill() // unshare, and so all in its namespaces
		<-ended
		err = fmt.Errorf("ended by %v; the cluster is taken away", s)
	}
	if dir := os.Getenv("HBMFS_CLUSTER_LOGS"); dir != "" {
		err = errors.Join(err, os.CopyFS(filepath.Join(dir, filepath.Base(work)), os.DirFS(filepath.Join(work, "logs"))))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// enter moves a shell into control groups, and into namespaces, where another shell is the first process and takes in orphans.
const enter = `while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit; shift; done; shift
exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc --net --ipc --uts --cgroup -- sh -c '"$@" & wait $!' sh "$@"`

// group is the cluster's own control group in a hierarchy.
type group struct {
	options string // of mount(8), of the hierarchy
	at      string // where the hierarchy is mounted
	dir     string
}

// controlGroups says which hierarchies there are: those of version 1, which is what this was written on.
func controlGroups() (found []group, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 || kind[0] != "cgroup" {
			continue
		}
		options := strings.TrimPrefix(kind[2], "rw,")
		if strings.HasPrefix(options, "name=") {
			options = "none," + options
		}
		found = append(found, group{options, fields[4], filepath.Join(fields[4], "hbmfs-cluster-"+strconv.Itoa(os.Getpid()))})
	}
	if len(found) == 0 {
		return nil, errors.New("this machine has control groups of version 2 only; the cluster of these tests was made for version 1")
	}
	return found, nil
}

func makeGroups(groups []group) error {
	for _, g := range groups {
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			return err
		}
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // which are empty in a new one
			if text, err := os.ReadFile(filepath.Join(g.at, name)); err == nil {
				if err := os.WriteFile(filepath.Join(g.dir, name), text, 0o644); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// removeGroups removes the control groups, from the innermost on. Processes that were killed leave them soon.
func removeGroups(groups []group) (err error) {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err = nil
		for _, g := range groups {
			var dirs []string
			_ = filepath.WalkDir(g.dir, func(path string, d os.DirEntry, walkErr error) error { // what goes meanwhile is gone
				if walkErr == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for i := range dirs {
				if rmErr := unix.Rmdir(dirs[len(dirs)-1-i]); rmErr != nil && !errors.Is(rmErr, unix.ENOENT) {
					err = fmt.Errorf("remove control group %s: %w", dirs[len(dirs)-1-i], rmErr)
				}
			}
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
