package csi_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// podRole in the environment makes this program a part of a pod.
const podRole = "HBMFS_TEST_POD"

// runPod is the runtime, which makes the pod's root and stays as its first process, or the pod's own program.
func runPod(role string) (code int) {
	var err error
	if role == "runtime" {
		err = containerRuntime(os.Args[1])
	} else {
		err = obey()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// containerRuntime does what a container runtime does, as root in the new namespaces: a root of its own with the volume in
// it, and then the pod's program as an ordinary user of a new user namespace.
func containerRuntime(text string) error {
	var spec podSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	if err := enterRoot(&spec); err != nil {
		return fmt.Errorf("make the root of a pod: %w", err)
	}
	const inPod = 1000
	program := exec.Command("/bin/pod")
	program.Env = []string{podRole + "=program", "GORACE=atexit_sleep_ms=20"}
	program.Stdin, program.Stdout, program.Stderr = os.Stdin, os.Stdout, os.Stderr
	if spec.Group >= 0 {
		program.SysProcAttr = &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: inPod, Gid: inPod, Groups: []uint32{uint32(spec.Group)}},
		}
		return program.Run()
	}
	ids := []syscall.SysProcIDMap{{ContainerID: inPod, HostID: spec.ID, Size: 1}}
	program.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true, Pdeathsig: syscall.SIGKILL,
		Credential: &syscall.Credential{Uid: inPod, Gid: inPod},
	}
	return program.Run()
}

func enterRoot(spec *podSpec) error {
	in := func(name string) string { return filepath.Join(spec.Root, name) }
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""),
		unix.Mount("none", spec.Root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"),
	)
	for _, dir := range []string{"bin", "data", "dev", "proc", "tmp"} {
		err = errors.Join(err, os.Mkdir(in(dir), 0o755))
	}
	if err != nil {
		return err
	}
	propagation := uintptr(unix.MS_PRIVATE)
	if spec.Propagate {
		propagation = unix.MS_SLAVE
	}
	err = errors.Join(
		unix.Mount(spec.Volume, in("data"), "", unix.MS_BIND|unix.MS_REC, ""),
		unix.Mount("", in("data"), "", propagation|unix.MS_REC, ""),
		unix.Mount("none", in("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
	)
	if !spec.Writable {
		err = errors.Join(err, unix.Mount("", in("data"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""))
	}
	for from, to := range map[string]string{spec.Program: "bin/pod", spec.HBMFS: "bin/hbmfs", "/dev/null": "dev/null"} {
		err = errors.Join(err, os.WriteFile(in(to), nil, 0o644), unix.Mount(from, in(to), "", unix.MS_BIND, ""))
	}
	for _, dir := range []string{"/lib", "/lib64", "/usr/lib"} { // the image's C library, which the race detector needs
		if _, statErr := os.Stat(dir); statErr == nil {
			err = errors.Join(err, os.MkdirAll(in(dir), 0o755), unix.Mount(dir, in(dir), "", unix.MS_BIND, ""))
		}
	}
	if err != nil {
		return err
	}
	// The old root is stacked upon the new one, and taken off: runc's way.
	return errors.Join(os.Chdir(spec.Root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), os.Chdir("/"))
}

// content is what a file of a volume holds.
func content(f file) []byte {
	p := make([]byte, (f.Size+7)/8*8)
	x := f.Seed * 0x9e3779b97f4a7c15
	for i := 0; i < len(p); i += 8 { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(p[i:], z^z>>31)
	}
	return p[:f.Size]
}

// program is the pod's: it does what it is told on its standard input, one thing after the other.
type program struct {
	mu       sync.Mutex
	contents map[file][]byte // guarded by mu
	held     *held
	loop     *loop
	draft    *control.DraftClient
	first    uint32     // number of the draft's file
	pens     []*os.File // of that
	engine   engine
}

func obey() error {
	p := &program{contents: map[file][]byte{}, engine: engine{pins: map[string]uint64{}}}
	orders, said := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return err
		}
		var a answer
		err := p.do(o, &a)
		var wrong *wrongError
		switch {
		case errors.As(err, &wrong):
			a.Wrong = err.Error()
		case err != nil:
			a.Error = err.Error()
		}
		if err := said.Encode(a); err != nil {
			return err
		}
	}
}

// wrongError says that bytes were read which are not the file's.
type wrongError struct{ text string }

func (e *wrongError) Error() string { return e.text }

// compare compares the bytes read at off.
func (p *program) compare(f file, got []byte, off int, how string) error {
	want := p.content(f)
	if off+len(got) > len(want) {
		return &wrongError{fmt.Sprintf("%s gives %d bytes at %d of a file of %d", how, len(got), off, f.Size)}
	}
	if want = want[off : off+len(got)]; bytes.Equal(got, want) {
		return nil
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	return &wrongError{fmt.Sprintf("%s gives %x at %d, want %x", how, got[i:min(i+16, len(got))], off+i, want[i:min(i+16, len(want))])}
}

func (p *program) content(f file) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.contents[f] == nil {
		p.contents[f] = content(f)
	}
	return p.contents[f]
}

func (p *program) do(o order, a *answer) (err error) {
	path := filepath.Join("/data", o.File.Name)
	switch o.Do {
	case "hello":
	case "see": // a path of the host
		_, err = os.Lstat(o.File.Name)
	case "who":
		a.Text, err = who()
	case "read":
		err = p.read(path, o.File, a)
	case "map":
		err = p.mapped(path, o.File)
	case "control":
		err = p.control(path, o.File, a)
	case "hbmfs":
		err = p.hbmfs(path, o.File)
	case "status":
		var text []byte
		text, err = os.ReadFile("/data/.hbmfs/status")
		a.Text = string(text)
	case "hold":
		p.content(o.File)
		p.held, err = hold(path)
	case "held":
		err = p.held.check(p, o.File)
	case "loop":
		p.content(o.File) // before the clock runs
		p.loop = &loop{p: p, path: path, file: o.File, stop: make(chan struct{}), ended: make(chan struct{})}
		p.loop.step = p.loop.pass
		go p.loop.run()
	case "loop held": // over a file that stays open and mapped
		p.content(o.File)
		p.loop = &loop{p: p, path: path, file: o.File, stop: make(chan struct{}), ended: make(chan struct{})}
		if p.loop.step, err = p.loop.passHeld(); err == nil {
			go p.loop.run()
		}
	case "loop so far":
		*a = p.loop.answer()
	case "end loop":
		close(p.loop.stop)
		<-p.loop.ended
		*a = p.loop.answer()
	default:
		if known, done := p.checkpoint(o, path); known {
			return done
		}
		if known, done := p.kv(o, a); known {
			return done
		}
		err = fmt.Errorf("unknown order %q", o.Do)
	}
	return err
}

// who tells the program's identity and its surroundings: one fact a line.
func who() (string, error) {
	status, err1 := os.ReadFile("/proc/self/status")
	mounts, err2 := mountinfo.GetMounts(nil)
	users, err3 := os.ReadFile("/proc/self/uid_map")
	var facts []string
	for _, line := range strings.Split(string(status), "\n") {
		if name, value, ok := strings.Cut(line, ":\t"); ok && (name == "CapEff" || name == "Uid") {
			facts = append(facts, name+" "+strings.Join(strings.Fields(value), " "))
		}
	}
	facts = append(facts, "uid_map "+strings.Join(strings.Fields(string(users)), " "))
	var points []string
	for _, m := range mounts {
		points = append(points, m.Mountpoint)
	}
	slices.Sort(points)
	facts = append(facts, "mounts "+strings.Join(points, " "))
	facts = append(facts, fmt.Sprint("create: ", errors.Is(os.WriteFile("/data/new", nil, 0o644), unix.EROFS)))
	for _, name := range []string{"mnt", "pid", "user", "net"} {
		link, err := os.Readlink("/proc/self/ns/" + name)
		facts = append(facts, "namespace "+link)
		err1 = errors.Join(err1, err)
	}
	return strings.Join(facts, "\n"), errors.Join(err1, err2, err3)
}

// chunk is read at once.
const chunk = 1 << 20

// read reads a file from its beginning to its end.
func (p *program) read(path string, f file, a *answer) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // opened for reading
	return p.readOpen(in, f, func(n int) { a.Bytes += int64(n) })
}

func (p *program) readOpen(in *os.File, f file, did func(n int)) error {
	buffer := make([]byte, chunk)
	for off := 0; ; {
		n, err := in.ReadAt(buffer, int64(off))
		if wrong := p.compare(f, buffer[:n], off, "read"); wrong != nil {
			return wrong
		}
		did(n)
		off += n
		switch {
		case errors.Is(err, io.EOF) && off == f.Size:
			return nil
		case errors.Is(err, io.EOF):
			return &wrongError{fmt.Sprintf("the file ends after %d of %d bytes", off, f.Size)}
		case err != nil:
			return err
		}
	}
}

// hbmfs reads by the command, which takes the bypass.
func (p *program) hbmfs(path string, f file) error {
	out, err := exec.Command("/bin/hbmfs", "read", "--path", "host", "--to", "host", "--json", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("hbmfs read: %w: %s", err, out)
	}
	if want := fmt.Sprintf("%x", sum(p.content(f))); !strings.Contains(string(out), want) {
		return &wrongError{fmt.Sprintf("hbmfs read says %s, want %s", out, want)}
	}
	return nil
}

// restOfLoop is how long a loop rests between two passes: without it, readers take the CPUs from what they wait for.
const restOfLoop = 50 * time.Millisecond

// loop reads a file again and again, and looks at the clock.
type loop struct {
	p           *program
	path        string
	file        file
	stop, ended chan struct{}
	step        func(last *time.Time) error

	bytes, passes, errors, longest atomic.Int64
	mu                             sync.Mutex
	wrong, first                   error // guarded by mu
}

func (l *loop) run() {
	defer close(l.ended)
	last := time.Now()
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		err := l.step(&last)
		var wrong *wrongError
		if err == nil {
			l.passes.Add(1)
			time.Sleep(restOfLoop)
			last = time.Now() // a rest is no wait for a read
			continue
		}
		l.errors.Add(1)
		l.mu.Lock()
		if errors.As(err, &wrong) && l.wrong == nil {
			l.wrong = err
		}
		if l.first == nil {
			l.first = err
		}
		l.mu.Unlock()
		time.Sleep(time.Millisecond) // a failing read fails at once, and would fill a CPU
	}
}

func (l *loop) pass(last *time.Time) error {
	in, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // opened for reading
	return l.p.readOpen(in, l.file, func(n int) {
		now := time.Now()
		l.longest.Store(max(l.longest.Load(), int64(now.Sub(*last))))
		*last = now
		l.bytes.Add(int64(n))
	})
}

// passHeld opens and maps the file, and returns a pass over both that has the kernel ask for every page again.
func (l *loop) passHeld() (pass func(last *time.Time) error, err error) {
	in, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	m, err := unix.Mmap(int(in.Fd()), 0, l.file.Size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	forget := func() error {
		return errors.Join(unix.Madvise(m, unix.MADV_DONTNEED), unix.Fadvise(int(in.Fd()), 0, 0, unix.FADV_DONTNEED))
	}
	return func(last *time.Time) error {
		did := func(n int) {
			now := time.Now()
			l.longest.Store(max(l.longest.Load(), int64(now.Sub(*last))))
			*last = now
			l.bytes.Add(int64(n))
		}
		err := errors.Join(forget(), l.p.readOpen(in, l.file, did), forget())
		const page = 64 << 10
		for off := 0; off < len(m) && err == nil; off += page {
			end := min(off+page, len(m))
			err = l.p.compare(l.file, m[off:end], off, "a mapping that stays")
			did(end - off)
		}
		return err
	}, nil
}

func (l *loop) answer() answer {
	a := answer{Bytes: l.bytes.Load(), Passes: int(l.passes.Load()), Errors: int(l.errors.Load()), Longest: time.Duration(l.longest.Load())}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wrong != nil {
		a.Wrong = l.wrong.Error()
	}
	if l.first != nil {
		a.Text = l.first.Error()
	}
	return a
}
