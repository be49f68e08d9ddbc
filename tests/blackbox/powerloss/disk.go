// Package powerloss is a disk that can show its contents after a power loss, for tests of durability.
//
//	func TestMain(m *testing.M) { powerloss.ServeChild(); ... } // in the test's child
//
//	d := powerloss.New(t, t.TempDir(), t.TempDir())
//	...                                          // writes below d.Dir
//	for _, image := range d.Losses(t) {
//		unmount := powerloss.Mount(t, image, dir) // what is there now?
package powerloss

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

const (
	diskEnv   = "HBMFS_TEST_DISK" // tells the test's child where its disk is
	diskSize  = 16 << 20
	diskBlock = 4096
	diskKeeps = 12 // images of power losses
)

// disk is a disk with an ext4 on it: a file of a filesystem that a child of the test serves, under a loop device. It
// knows the bytes that a power loss would leave: all that were flushed, and any part of the others. (The test itself
// cannot serve it: a child of it that is about to run another program closes files on it, for which Go's scheduler
// waits.)
type disk struct {
	gofs.Inode
	losses string // directory of the images

	mu           sync.Mutex // guards the fields below
	now, durable []byte
	dirty        map[int64]bool // blocks that are not durable
	lost         int            // images so far
	random       *rand.Rand
}

// ServeChild is for TestMain of each package that calls New: the test's child serves the disk, and ends here.
func ServeChild() {
	dir := os.Getenv(diskEnv)
	if dir == "" {
		return
	}
	if err := serve(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:revive // the child has nothing else to do
	}
	os.Exit(0) //nolint:revive // the same
}

// serve serves the disk in dir/image as dir/served/disk until its standard input ends, for each line of which it writes one
// more image.
func serve(dir string) error {
	image, err := os.ReadFile(filepath.Join(dir, "image"))
	if err != nil || len(image) != diskSize {
		return fmt.Errorf("read the image of %d bytes: %w", len(image), err)
	}
	d := &disk{losses: dir, now: image, durable: append([]byte(nil), image...), dirty: map[int64]bool{}, random: rand.New(rand.NewPCG(1, 2))}
	root := &gofs.Inode{}
	server, err := gofs.Mount(filepath.Join(dir, "served"), root, &gofs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "disk", Name: "test"},
		OnAdd: func(ctx context.Context) {
			root.AddChild("disk", root.NewPersistentInode(ctx, d, gofs.StableAttr{Mode: fuse.S_IFREG}), false)
		},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		d.mu.Lock()
		err := d.lose()
		d.mu.Unlock()
		fmt.Println("lost", err)
	}
	_ = server.Unmount() // with the process it goes anyway
	return nil
}

// Getattr, Open, Read, Write and Fsync are those of a file.
func (d *disk) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = fuse.S_IFREG|0o600, diskSize
	return 0
}

func (d *disk) Open(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0 // no cache between the ext4 and this disk
}

func (d *disk) Read(_ context.Context, _ gofs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fuse.ReadResultData(append([]byte(nil), d.now[off:min(off+int64(len(dest)), diskSize)]...)), 0
}

func (d *disk) Write(_ context.Context, _ gofs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.now[off:], data)
	for b := off / diskBlock; b*diskBlock < off+int64(len(data)); b++ {
		d.dirty[b] = true
	}
	return uint32(len(data)), 0
}

func (d *disk) Fsync(context.Context, gofs.FileHandle, uint32) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost < diskKeeps && len(d.dirty) > 0 {
		if err := d.lose(); err != nil {
			return syscall.EIO // which the test then meets
		}
	}
	for b := range d.dirty {
		copy(d.durable[b*diskBlock:(b+1)*diskBlock], d.now[b*diskBlock:])
	}
	clear(d.dirty)
	return 0
}

// lose writes an image of the disk after a power loss now. Of the blocks that are not durable, any may be missing.
// d.mu is held.
func (d *disk) lose() (err error) {
	d.lost++
	f, err := os.Create(filepath.Join(d.losses, fmt.Sprintf("lost-%03d", d.lost)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(d.durable); err != nil {
		return err
	}
	for b := int64(0); b < diskSize/diskBlock; b++ { // in order, so that chance is the same each time
		if d.dirty[b] && d.random.IntN(2) == 0 {
			if _, err := f.WriteAt(d.now[b*diskBlock:(b+1)*diskBlock], b*diskBlock); err != nil {
				return err
			}
		}
	}
	return nil
}

// Disk is a disk as the test sees it.
type Disk struct {
	Dir     string // where the ext4 is mounted
	files   string // of the child
	ask     io.Writer
	answers *bufio.Reader
}

// New makes a disk and mounts its ext4 on dir until the test ends. Its files are in another directory, which is empty, too.
func New(t *testing.T, dir, files string) *Disk {
	t.Helper()
	p := &Disk{Dir: dir, files: files}
	image, served := filepath.Join(p.files, "image"), filepath.Join(p.files, "served")
	must(t, errors.Join(os.Mkdir(served, 0o755), os.WriteFile(image, nil, 0o600), os.Truncate(image, diskSize)))
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		mkfs = "/usr/sbin/mkfs.ext4" // where a PATH need not lead
	}
	if out, err := exec.Command(mkfs, "-q", "-F", "-b", "4096", "-N", "512", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0", image).CombinedOutput(); err != nil {
		t.Skipf("needs mkfs.ext4 (package e2fsprogs): %v: %s", err, out)
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), diskEnv+"="+p.files)
	child.Stderr = os.Stderr
	ask, err := child.StdinPipe()
	must(t, err)
	p.ask = ask
	answers, err := child.StdoutPipe()
	must(t, err)
	p.answers = bufio.NewReader(answers)
	must(t, child.Start())
	t.Cleanup(func() {
		if err := errors.Join(ask.Close(), child.Wait(), detach(served)); err != nil {
			t.Error(err)
		}
	})
	p.answer(t, "ready\n")
	Mount(t, filepath.Join(served, "disk"), p.Dir)
	return p
}

func (p *Disk) answer(t *testing.T, want string) {
	t.Helper()
	if line, err := p.answers.ReadString('\n'); line != want {
		t.Fatalf("the disk says %q (%v), want %q", line, err, want)
	}
}

// Losses gives images of the disk after power losses so far, the last one after a loss now.
func (p *Disk) Losses(t *testing.T) []string {
	t.Helper()
	_, err := io.WriteString(p.ask, "lose\n")
	must(t, err)
	p.answer(t, "lost <nil>\n")
	images, err := filepath.Glob(filepath.Join(p.files, "lost-*"))
	must(t, err)
	return images
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// detach removes the mounts on dir, if there are any.
func detach(dir string) error {
	if mounted, err := blackbox.IsMounted(dir); err != nil || !mounted {
		return err
	}
	return blackbox.Detach(dir)
}

// Mount mounts the ext4 in a file on dir until the test ends, or until unmount.
func Mount(t *testing.T, image, dir string) (unmount func()) {
	t.Helper()
	backing, err := os.OpenFile(image, os.O_RDWR, 0)
	must(t, err)
	defer func() { must(t, backing.Close()) }() // the loop device has its own
	device, err := loop(backing)
	if err != nil {
		t.Skipf("needs loop devices: %v", err)
	}
	defer func() { must(t, device.Close()) }() // it goes with the mount
	must(t, unix.Mount(device.Name(), dir, "ext4", 0, ""))
	unmount = sync.OnceFunc(func() {
		var err error
		if !blackbox.Within(time.Minute, func() bool { err = unix.Unmount(dir, 0); return err == nil }) {
			t.Errorf("unmount the disk: %v", errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)))
		}
	})
	t.Cleanup(unmount)
	return unmount
}

// loop makes a file a block device, for as long as that is open or mounted.
func loop(backing *os.File) (device *os.File, err error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }() // it was asked
	for range 100 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a loop device: %w", err)
		}
		if device, err = os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0); err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}})
		if err == nil {
			return device, nil
		}
		_ = device.Close() // it is somebody else's
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("set up %s: %w", device.Name(), err)
		}
	}
	return nil, errors.New("every loop device is taken at once")
}
