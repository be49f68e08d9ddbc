package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Addresses in the cluster's network namespace.
const (
	address = "10.88.0.1" // of the node, on the bridge of the pods
	podNet  = "10.88.0.0/16"
)

// cluster is a node and the programs that make it one.
type cluster struct {
	programs string // directory of programs and images
	work     string // directory of all that is written

	processes map[string]*process
	s3        *exec.Cmd // the S3 server
	failed    error     // of the installation
}

// at is a path below the directory of all that is written.
func (c *cluster) at(names ...string) string {
	return filepath.Join(append([]string{c.work}, names...)...)
}

// program is the path of one.
func (c *cluster) program(name string) string { return filepath.Join(c.programs, name) }

// enter makes the namespaces a machine: mounts that are shared, as Kubernetes wants them, directories of its own, and a network.
func (c *cluster) enter() error {
	own := map[string]string{"/var/lib/kubelet": "kubelet", "/var/lib/hbmfs": "hbmfs", "/var/log": "logs/node"}
	for _, name := range []string{"logs", "data", "cni", "sysctl", "buckets", "meta", "checkpoints", "kv"} {
		if err := os.Mkdir(c.at(name), 0o755); err != nil {
			return err
		}
	}
	err := errors.Join(
		leaveMounts(),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""),
		unix.Mount("none", "/var/lib", "tmpfs", 0, "mode=755"),
		unix.Mount("none", "/run", "tmpfs", 0, "mode=755"),
		unix.Sethostname([]byte("node-1")),
	)
	for at, name := range own {
		err = errors.Join(err, os.Mkdir(c.at(name), 0o755), os.MkdirAll(at, 0o755), unix.Mount(c.at(name), at, "", unix.MS_BIND, ""))
	}
	return errors.Join(err, c.mountGroups(), c.fakeSysctls(), c.network())
}

// leaveMounts takes the machine's own FUSE mounts out of this namespace, which would keep them in use.
func leaveMounts() error {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !strings.HasPrefix(m.FSType, "fuse"), false })
	for _, m := range mounts {
		err = errors.Join(err, unix.Unmount(m.Mountpoint, unix.MNT_DETACH))
	}
	return err
}

// mountGroups shows the cluster's own control groups where kubelet looks, as the roots of their hierarchies.
func (c *cluster) mountGroups() error {
	groups, err := controlGroups()
	if err != nil {
		return err
	}
	err = errors.Join(
		unix.Mount("none", "/sys", "sysfs", 0, ""), // of the network namespace
		unix.Mount("none", "/sys/fs/cgroup", "tmpfs", 0, "mode=755"),
	)
	for _, g := range groups {
		err = errors.Join(err, os.Mkdir(g.at, 0o755), unix.Mount("cgroup", g.at, "cgroup", 0, g.options))
	}
	return err
}

// fakeSysctls has kubelet find what it would set on the whole machine.
func (c *cluster) fakeSysctls() (err error) {
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := c.at("sysctl", strings.ReplaceAll(name, "/", "."))
		err = errors.Join(err, os.WriteFile(file, []byte(value+"\n"), 0o644), unix.Mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""))
	}
	return err
}

// network makes the bridge on which the pods are, whose address is the node's.
func (c *cluster) network() error {
	for _, line := range []string{
		"link set lo up", "link add cni0 type bridge", "addr add " + address + "/16 dev cni0", "link set cni0 up", "route add default dev cni0",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return os.WriteFile(c.at("cni", "10-pods.conflist"), []byte(`{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0",
  "isGateway": true, "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "`+c.at("cni-state")+`", "ranges": [[{"subnet": "`+podNet+`", "rangeStart": "10.88.1.1"}]]}}]}`), 0o644)
}

// process is a program of the cluster that runs until it is killed.
type process struct {
	name, log string
	args      []string
	cmd       *exec.Cmd
	ended     chan struct{} // closed when it has
}

// run starts a program, whose log is named after it.
func (c *cluster) run(name string, args ...string) (*process, error) {
	p := &process{name: name, log: c.at("logs", name+".log"), args: args}
	if c.processes == nil {
		c.processes = map[string]*process{}
	}
	c.processes[name] = p
	return p, p.start()
}

func (p *process) start() error {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // the process has it
	p.cmd, p.ended = exec.Command(p.args[0], p.args[1:]...), make(chan struct{})
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() { // ends with the process
		defer close(p.ended)
		_ = p.cmd.Wait() // it is killed most of the time; what it said is in the log
	}()
	return nil
}

// restart kills a process and starts it again.
func (p *process) restart() error {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-p.ended
	return p.start()
}

// tail is the end of what a process said.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}
