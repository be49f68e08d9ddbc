package host

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/mounts/ready"
	"github.com/hbmfs/hbmfs/internal/text/address"
)

// daemon is a process that serves a mount: a child, or one that an earlier host started. A nil daemon is none.
type daemon struct {
	pid   int
	fd    *os.File      // of the process: it never names another
	child *exec.Cmd     // nil where it is no child
	began time.Time     // or when it was adopted
	log   int64         // where in the volume's log its lines begin, as far as that is known
	done  chan struct{} // closed when it has ended
}

func (d *daemon) alive() bool {
	if d == nil {
		return false
	}
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

func (d *daemon) signal(s syscall.Signal) {
	raw, err := d.fd.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), s, nil, 0) }) // it may be gone already
	}
}

// killTime is how long a process may take to end that was killed, or whose filesystem was ended. It needs milliseconds,
// unless it waits for a disk or a network filesystem that is dead.
const killTime = 5 * time.Second

// kill ends the daemon at once.
func (d *daemon) kill() {
	d.signal(syscall.SIGKILL)
	d.within(killTime)
}

// within waits for the end of the daemon, and tells whether it came.
func (d *daemon) within(limit time.Duration) bool {
	select {
	case <-d.done:
		return true
	case <-time.After(limit):
		return false
	}
}

// await waits until the process has ended, or the host has; it closes done in the first case.
func (d *daemon) await(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = d.fd.SetReadDeadline(time.Unix(1, 0)) })()
	raw, err := d.fd.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	if err != nil { // the host ends
		return
	}
	if d.child != nil {
		_ = d.child.Wait() // its log says why it ended
	}
	_ = d.fd.Close() // there is nothing to signal any more
	close(d.done)
}

// newDaemon watches a process by its descriptor, which it owns.
func (h *Host) newDaemon(pid, fd int, child *exec.Cmd) *daemon {
	_ = unix.SetNonblock(fd, true) // so that waiting for it needs no thread
	d := &daemon{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), child: child, began: time.Now(), done: make(chan struct{})}
	h.waits.Go(func() { d.await(h.waiting) })
	return d
}

// logLimit is the size from which the log of a daemon is set aside at its next start.
const logLimit = 1 << 20

// launch starts the daemon of a volume and returns when its mount is up. With a copy of a keeper's descriptors the daemon goes on with
// the mount.
func (h *Host) launch(ctx context.Context, v *nodeVolume, c handover.Copy) (*daemon, error) {
	var spec volume.Spec
	v.with(func(r *record) { spec = r.Spec })
	if err := h.allowed(ctx, spec, "", false); err != nil { // it may lead somewhere else by now
		return nil, err
	}
	if err := h.diskFor(spec); err != nil {
		return nil, err
	}
	log, err := v.openLog()
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the daemon has its own
	logged, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }() // opened for reading
	args, err := h.arguments(spec)
	if err != nil {
		_ = write.Close() // nobody writes
		return nil, err
	}
	cmd := exec.Command(h.opt.HBMFS, append(args, "-o", "fsname="+v.name(), "--", spec.Address(), v.mount())...)
	cmd.Env = append(append(environment(os.Environ()), v.rights(spec)...), handover.CopiedEnv+"=1")
	cmd.Stdout, cmd.Stderr = log, log // not this process's: that may be a pipe, which a daemon must outlive
	cmd.ExtraFiles = []*os.File{write}
	if c != nil {
		end, err := v.offer(c, cmd)
		if err != nil {
			return nil, errors.Join(err, write.Close())
		}
		defer end()
	}
	cmd.Dir = "/"
	pidfd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	err = cmd.Start()
	_ = write.Close() // the daemon has its own
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", h.opt.HBMFS, err)
	}
	if pidfd < 0 {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return nil, errors.New("this kernel gives no descriptor of a process: Linux 5.4 is needed")
	}
	d := h.newDaemon(cmd.Process.Pid, pidfd, cmd)
	d.log = logged
	return d, v.awaitReady(ctx, d, read)
}

// offer has a daemon that is about to start take a mount over. end waits until it has, or has ended.
func (v *nodeVolume) offer(c handover.Copy, cmd *exec.Cmd) (end func(), err error) {
	ours, theirs, err := handover.Pair()
	if err != nil {
		return nil, err
	}
	socket := os.NewFile(uintptr(theirs), "holder")
	cmd.Env = append(cmd.Env, handover.Environment(3+len(cmd.ExtraFiles)))
	cmd.ExtraFiles = append(cmd.ExtraFiles, socket)
	offered := make(chan error, 1)
	go func() { offered <- errors.Join(c.Offer(ours), unix.Close(ours)) }() // ends with the daemon, or when that goes on
	return func() {
		_ = socket.Close() // the daemon has its own
		if err := <-offered; err != nil {
			v.host.log.Error("a daemon does not take a mount over", "volume", v.key, "error", err)
		}
	}, nil
}

// arguments are those of the command that mounts a volume, without source and mount point. Where the cache is needed, its directory is
// made.
func (h *Host) arguments(spec volume.Spec) ([]string, error) {
	args := append([]string{"mount", "-f", "--no-keeper=false", "--allow-other"}, spec.Flags...)
	if spec.KV {
		return append(append([]string{"kv"}, args...), "--size="+strconv.FormatInt(spec.Size, 10), "--memory="+strconv.FormatInt(spec.Memory, 10)), nil
	}
	args = append(args, "--refuse-local")
	for _, a := range h.opt.AllowAddress {
		args = append(args, "--allow-address="+a)
	}
	if spec.Checkpoints {
		args = append(append([]string{"checkpoint"}, args...), "--draft-life=container")
		if spec.Drain != "" {
			args = append(args, "--drain="+spec.Destination())
		}
		return args, nil
	}
	args = append(args, "--no-spare")
	if !spec.Cached() {
		return args, nil
	}
	if err := os.MkdirAll(h.opt.CacheDir, 0o700); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "make the cache directory: %v", err)
	}
	free, _, err := h.minFree()
	if err != nil {
		return nil, err
	}
	if free > spec.MinFree() { // the last one counts
		args = append(args, "--cache-min-free="+strconv.FormatInt(free, 10))
	}
	return append(args, "--cache-dir", h.opt.CacheDir), nil
}

// awaitReady waits for the daemon's word.
func (v *nodeVolume) awaitReady(ctx context.Context, d *daemon, from *os.File) error {
	defer context.AfterFunc(ctx, func() { _ = from.SetReadDeadline(time.Unix(1, 0)) })()
	state, text, err := ready.Listen(bufio.NewReader(io.LimitReader(from, 64<<10)), func(string) {}) // in the foreground are no notes
	if err == nil && state == ready.Mounted {
		return nil
	}
	if ctx.Err() != nil {
		v.kill(d)
		return status.Error(codes.Unavailable, "the start of the daemon was called off")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		v.kill(d)
		return fmt.Errorf("wait for the daemon: %w", err)
	}
	if !d.within(killTime) { // it has said why, or died
		v.kill(d)
	}
	code := -1
	if !d.alive() {
		code = d.child.ProcessState.ExitCode()
	}
	if text == "" {
		text = "the daemon died before its mount was ready: " + v.lastWords(d)
	}
	var remote bool
	v.with(func(r *record) { remote = r.Spec.Directory() == "" })
	return status.Error(codeOf(code, remote), text)
}

// codeOf maps how hbmfs mount ended: see the exit codes of cmd/hbmfs.
func codeOf(exit int, remote bool) codes.Code {
	switch {
	case exit == 2:
		return codes.InvalidArgument
	case exit == 5:
		return codes.NotFound
	case exit == 6:
		return codes.PermissionDenied
	case remote:
		return codes.Unavailable
	}
	return codes.Internal
}

// rights is the environment by which a daemon finds its credentials.
func (v *nodeVolume) rights(s volume.Spec) []string {
	env := []string{ready.Env + "=1", "AWS_EC2_METADATA_DISABLED=true"} // never the node's own role
	switch {
	case s.Auth == volume.AuthSecret, s.FederatedFile("") != nil:
		env = append(env, cmp.Or(address.Of(s.Asked()).SecretFile, "AWS_SHARED_CREDENTIALS_FILE")+"="+v.path(credentialsName))
	case s.Auth == volume.AuthPod && s.Tenant != "":
		env = append(env, "AZURE_TOKEN_CREDENTIALS=WorkloadIdentityCredential", "AZURE_FEDERATED_TOKEN_FILE="+v.path(tokenName), "AZURE_CLIENT_ID="+s.Role, "AZURE_TENANT_ID="+s.Tenant)
	case s.Auth == volume.AuthPod:
		env = append(env, "AWS_WEB_IDENTITY_TOKEN_FILE="+v.path(tokenName), "AWS_ROLE_ARN="+s.Role, "AWS_ROLE_SESSION_NAME=hbmfs-"+v.key)
	}
	return env
}

// environment is the host's own, without variables that could lend a daemon rights that its volume does not have.
func environment(all []string) []string {
	harmless := []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "AZURE_AUTHORITY_HOST", "HF_ENDPOINT"}
	lends := regexp.MustCompile(`^(AWS|MINIO|HF|HUGGING_FACE|TRANSFORMERS|GOOGLE|CLOUDSDK|GCE|AZURE|IDENTITY|IMDS|MSI|DOCKER|REGISTRY_AUTH)_|^XDG_(CACHE_HOME|CONFIG_HOME|RUNTIME_DIR)$`)
	return slices.DeleteFunc(slices.Clone(all), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return name == ready.Env || name == "HOME" || name == "NOTIFY_SOCKET" || // which is the host's
			(lends.MatchString(name) && !slices.Contains(harmless, name))
	})
}

func (v *nodeVolume) openLog() (*os.File, error) {
	name := v.path(logName)
	if info, err := os.Stat(name); err == nil && info.Size() > logLimit {
		if err := os.Rename(name, name+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// lastWords is the end of a daemon's log.
func (v *nodeVolume) lastWords(d *daemon) string {
	const end = 2 << 10
	f, err := os.Open(v.path(logName))
	if err != nil {
		return "it left no log"
	}
	defer func() { _ = f.Close() }() // opened for reading
	if info, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(d.log, info.Size()-end), io.SeekStart) // else it is shown from its beginning
	}
	text, err := io.ReadAll(io.LimitReader(f, end))
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return "it left no log"
	}
	return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", " | ")
}

// findDaemons looks for processes that serve mounts below this host's state directory, by mount point.
func (h *Host) findDaemons() (map[string][]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	found := map[string][]int{}
	volumes := filepath.Join(h.opt.StateDir, "volumes") + "/"
	for _, dir := range all {
		if point := mountPointOf(dir); strings.HasPrefix(point, volumes) {
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
				found[point] = append(found[point], pid)
			}
		}
	}
	return found, nil
}

// keepersBelow looks for processes of this user that hold mounts. They write to the logs of their daemons, which are below dir.
func keepersBelow(dir string) (pids []int, err error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		log, err := os.Readlink(filepath.Join(proc, "fd/2"))
		if err != nil || !strings.HasPrefix(log, dir+"/") { // or it has ended
			continue
		}
		line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if args := strings.Split(string(line), "\x00"); err != nil || len(args) < 2 || args[1] != handover.KeeperArgument || !ours(proc) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(proc)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// mountPointOf returns where a process serves a mount, "" where it does not, or is not root's.
func mountPointOf(proc string) string {
	line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if at := slices.Index(args, "mount"); err != nil || len(args) < 5 || at < 1 || at > 2 || args[at+1] != "-f" { // of a volume it is the second word
		return ""
	}
	if !ours(proc) {
		return ""
	}
	return args[len(args)-1]
}

// ours tells whether a process has this one's user. Daemons that outlive their host's container are in a mount namespace that no other process
// need have, so nothing can be told by that.
func ours(proc string) bool {
	info, err := os.Stat(proc)
	return err == nil && info.Sys().(*syscall.Stat_t).Uid == uint32(os.Geteuid())
}
