package csi_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// node is a machine of a cluster: kubelet's directory and the driver's, on a mount that is shared as Kubernetes has it,
// and the driver's two processes.
type node struct {
	t            testing.TB
	dir          string // all of it is below this shared mount
	state        string
	kubelet      string
	data         string // directories that volumes may have as their source
	checkpoints  string // below which checkpoint volumes lie
	blocks       string // below which KV volumes lie
	logs         string
	disk         string // of the cache, where it has one
	hostFlags    []string
	image        string // hbmfs in the image of the host
	host, plugin *process
	started      int // processes so far, for the names of their logs
	mu           sync.Mutex
	pods         []*pod // guarded by mu
	number       int    // pods so far; guarded by mu
}

// newNode makes a node whose host and plugin run. When the test ends, all of it is taken away, whatever happened.
func newNode(t testing.TB, hostFlags ...string) *node {
	t.Helper()
	needNode(t)
	dir, err := os.MkdirTemp(suite.Dir, "n-")
	must(t, err)
	n := &node{
		t: t, dir: dir, state: filepath.Join(dir, "state"), kubelet: filepath.Join(dir, "kubelet"),
		data: filepath.Join(dir, "data"), checkpoints: filepath.Join(dir, "checkpoints"), blocks: filepath.Join(dir, "blocks"), logs: filepath.Join(dir, "logs"), hostFlags: hostFlags,
		image: suite.Path(),
	}
	must(t, errors.Join(os.Chmod(dir, 0o755), unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, "")))
	t.Cleanup(n.takeDown)
	for _, d := range []string{n.state, n.kubelet, n.data, n.checkpoints, n.blocks, n.logs, filepath.Join(n.kubelet, "pods"), filepath.Join(n.kubelet, "plugins")} {
		must(t, os.Mkdir(d, 0o755))
	}
	n.startHost()
	n.startPlugin()
	n.waitReady()
	return n
}

func (n *node) socket() string { return filepath.Join(n.dir, "csi.sock") }

func (n *node) startHost() {
	n.t.Helper()
	args := []string{csiProgram, "host", "--state-dir", n.state, "--kubelet-dir", n.kubelet, "--hbmfs", n.image, "--allow-source", n.data, "--allow-checkpoints", n.checkpoints, "--allow-kv", n.blocks, "--kv-memory", "64MiB", "--allow-address", "127.0.0.1", "--cache-min-free", "1MiB", "--log-level", "debug"} // however full this machine's disk is
	n.host = n.start("host", append(args, n.hostFlags...)...)
}

// startPlugin starts the plugin without a privilege: it only passes on what kubelet says.
func (n *node) startPlugin() {
	n.t.Helper()
	n.plugin = n.start("plugin", "unshare", "--mount", "--propagation", "slave", "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs",
		csiProgram, "--endpoint", "unix://"+n.socket(), "--node-id", "node-1", "--state-dir", n.state,
		"--metrics-address", "", "--log-level", "debug")
}

// process is one of the driver's.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
}

// start starts hbmfs-csi as a container does: in a mount namespace that shares only what is shared.
func (n *node) start(name string, args ...string) *process {
	n.t.Helper()
	n.started++
	p := &process{name: name, log: filepath.Join(n.logs, fmt.Sprintf("%s-%03d.log", name, n.started)), done: make(chan struct{})}
	out, err := os.Create(p.log)
	must(n.t, err)
	defer func() { _ = out.Close() }() // the process has it
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Dir = "/"
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	must(n.t, p.cmd.Start())
	go func() { // ends with the process
		defer close(p.done)
		_ = p.cmd.Wait() // it is killed most of the time; what it said is in the log
	}()
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by now
	<-p.done
}

// end ends the process, which first says what it was doing where a test has failed.
func (p *process) end(dump bool) {
	if dump && p.cmd.Process.Signal(syscall.SIGQUIT) == nil {
		within(p.ended)
	}
	p.kill()
}

// ended tells whether the process has ended by itself.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (n *node) restartPlugin() {
	n.t.Helper()
	n.plugin.kill()
	n.startPlugin()
}

func (n *node) restartHost() {
	n.t.Helper()
	n.host.kill()
	n.startHost()
}

// killDaemons kills daemons as the out-of-memory killer does, and waits until they are gone.
func (n *node) killDaemons(daemons ...daemon) {
	n.t.Helper()
	for _, d := range daemons {
		_ = syscall.Kill(d.pid, syscall.SIGKILL) // it may have ended by now
	}
	for _, d := range daemons {
		if !within(func() bool { return blackbox.Ended(d.pid) }) {
			n.t.Fatalf("daemon %d survives SIGKILL", d.pid)
		}
	}
}

// killHeld kills daemons and their keepers at once, as the out-of-memory killer does with a group.
func (n *node) killHeld() {
	n.t.Helper()
	daemons := n.daemons()
	for _, d := range daemons {
		_ = syscall.Kill(d.pid, syscall.SIGSTOP) // else it has another keeper
	}
	n.killDaemons(n.keepers()...)
	n.killDaemons(daemons...)
}

// endMounts kills daemons and keepers, and ends their mounts, so that no other daemon can go on with one.
func (n *node) endMounts() {
	n.t.Helper()
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(n.state, "volumes")))
	must(n.t, err)
	for _, m := range found {
		_ = unix.Unmount(m.Mountpoint, unix.MNT_FORCE) // it is ended also where it is busy and stays
	}
	n.killHeld()
}

// daemon is a running hbmfs of this node.
type daemon struct {
	pid  int
	args []string
}

// daemons finds those that serve, in /proc.
func (n *node) daemons() (found []daemon) {
	n.t.Helper()
	return slices.DeleteFunc(n.programs(), func(d daemon) bool { return d.isKeeper() })
}

// keepers finds those that hold mounts.
func (n *node) keepers() (found []daemon) {
	n.t.Helper()
	return slices.DeleteFunc(n.programs(), func(d daemon) bool { return !d.isKeeper() })
}

func (d daemon) isKeeper() bool { return len(d.args) > 1 && d.args[1] == "keeper" }

// programs finds all processes of hbmfs that belong to this node: they name its directory, or log to a file in it.
func (n *node) programs() (found []daemon) {
	n.t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	must(n.t, err)
	for _, p := range processes {
		exe, err := os.Readlink(filepath.Join(p, "exe"))
		if err != nil || (exe != suite.Path() && !strings.HasPrefix(exe, n.dir+"/")) {
			continue // another's process, or one that has just ended
		}
		cmdline, err := os.ReadFile(filepath.Join(p, "cmdline"))
		pid, numErr := strconv.Atoi(filepath.Base(p))
		log, _ := os.Readlink(filepath.Join(p, "fd", "2")) // it may have ended
		if err == nil && numErr == nil && (bytes.Contains(cmdline, []byte(n.dir+"/")) || strings.HasPrefix(log, n.dir+"/")) {
			found = append(found, daemon{pid, strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")})
		}
	}
	return found
}

// mounts are those below the node's directory, deepest first.
func (n *node) mounts() (points []string) {
	n.t.Helper()
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(n.dir))
	must(n.t, err)
	for _, m := range found {
		if m.Mountpoint != n.dir {
			points = append(points, m.Mountpoint)
		}
	}
	slices.Reverse(points)
	return points
}

// mustBeClean fails the test when something is left although no volume is in use: a mount in any of the namespaces, a
// daemon, a file of a volume or of kubelet's, a descriptor. The cache may stay.
func (n *node) mustBeClean() {
	n.t.Helper()
	var left []string
	if !within(func() bool { left = n.leftovers(); return len(left) == 0 }) {
		n.t.Errorf("left although nothing uses a volume:\n%s", strings.Join(left, "\n"))
	}
}

func (n *node) leftovers() (left []string) {
	n.t.Helper()
	for _, m := range n.mounts() {
		left = append(left, "mount "+m)
	}
	for _, d := range n.programs() {
		left = append(left, fmt.Sprint("daemon ", d.pid, " ", d.args))
	}
	for _, dir := range []string{filepath.Join(n.state, "volumes"), filepath.Join(n.kubelet, "pods"), filepath.Join(n.kubelet, "plugins", "kubernetes.io", "csi", driverName)} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			left = append(left, err.Error())
		}
		for _, e := range entries {
			left = append(left, "file "+filepath.Join(dir, e.Name()))
		}
	}
	for _, p := range []*process{n.host, n.plugin} {
		left = append(left, n.keptBy(p)...)
	}
	return left
}

// keptBy is what a process of the driver holds that belongs to a volume: mounts in its namespace, and descriptors.
func (n *node) keptBy(p *process) (kept []string) {
	proc := filepath.Join("/proc", strconv.Itoa(p.pid()))
	if table, err := os.Open(filepath.Join(proc, "mountinfo")); err == nil {
		mounts, err := mountinfo.GetMountsFromReader(table, mountinfo.PrefixFilter(n.dir+"/"))
		_ = table.Close() // opened for reading
		if err != nil {
			kept = append(kept, err.Error())
		}
		for _, m := range mounts {
			kept = append(kept, fmt.Sprintf("mount %s in the namespace of the %s", m.Mountpoint, p.name))
		}
	}
	fds, err := filepath.Glob(filepath.Join(proc, "fd", "*"))
	if err != nil {
		return append(kept, err.Error())
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil {
			continue // closed meanwhile
		}
		if isDevice(fd) || strings.HasPrefix(target, "/memfd:hbmfs") || strings.Contains(target, "pidfd") || strings.HasPrefix(target, n.kubelet) ||
			strings.HasPrefix(target, filepath.Join(n.state, "volumes")+"/") || strings.HasPrefix(target, "mnt:[") {
			kept = append(kept, fmt.Sprintf("descriptor %s of the %s", target, p.name))
		}
	}
	return kept
}

// fds counts the open files of a process.
func fds(t testing.TB, pid int) int {
	t.Helper()
	names, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	must(t, err)
	return len(names)
}

// takeDown ends everything of the node, and fails the test when the driver crashed.
func (n *node) takeDown() {
	for _, p := range n.pods {
		p.kill()
	}
	for _, p := range []*process{n.plugin, n.host} {
		if p != nil {
			p.end(n.t.Failed())
		}
	}
	for range 3 { // what was mounted upon another shows when that is gone, and a daemon that was just being started comes up
		n.killHeld()
		for _, m := range n.mounts() {
			_ = unix.Unmount(m, unix.MNT_DETACH) // the suite reports what stays
		}
	}
	n.lookAtLogs()
	if err := errors.Join(unix.Unmount(n.dir, unix.MNT_DETACH), os.RemoveAll(n.dir)); err != nil {
		n.t.Errorf("take the node away: %v", err)
	}
}

// lookAtLogs fails the test when a log speaks of a crash, and shows the logs of a test that failed.
func (n *node) lookAtLogs() {
	logs, _ := filepath.Glob(filepath.Join(n.logs, "*.log")) // the pattern is good
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			n.t.Error(err)
		}
		for _, crash := range []string{"panic:", "fatal error:", "goroutine ", "internal error"} {
			if bytes.Contains(text, []byte(crash)) {
				n.t.Errorf("%s speaks of a crash", filepath.Base(name))
			}
		}
		if n.t.Failed() {
			n.t.Logf("%s:\n%s", filepath.Base(name), text[max(0, len(text)-20_000):])
		}
	}
}
