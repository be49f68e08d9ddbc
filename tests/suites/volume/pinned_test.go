package volume_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// Of <linux/userfaultfd.h>.
const (
	uffdAPI      = 0xaa
	uffdioAPI    = 0xc018aa3f
	uffdRegister = 0xc020aa00
	uffdCopy     = 0xc028aa03
	uffdMissing  = 1
)

// pinned is a system call that has pinned a page of a file, and will write to it.
type pinned struct {
	faults int
	from   []byte // the page that the system call waits for
	over   chan error
}

// pinPage maps a file that is open for reading and writing, has a system call pin the first page, and unmaps the file. It closes the file.
func pinPage(t *testing.T, f *os.File) *pinned {
	t.Helper()
	page := os.Getpagesize()
	m, err := unix.Mmap(int(f.Fd()), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	blackbox.Must(t, err)
	from, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	blackbox.Must(t, err)
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skipf("needs userfaultfd: %v", errno)
	}
	p := &pinned{faults: int(fd), from: from, over: make(chan error, 1)}
	ioctl(t, p.faults, uffdioAPI, &[3]uint64{uffdAPI})
	ioctl(t, p.faults, uffdRegister, &[4]uint64{uint64(uintptr(unsafe.Pointer(&from[0]))), uint64(page), uffdMissing})
	go func() { // ends once the page is there
		local, remote := unix.Iovec{Base: &from[0], Len: 8}, unix.RemoteIovec{Base: uintptr(unsafe.Pointer(&m[0])), Len: 8}
		n, err := unix.ProcessVMWritev(os.Getpid(), []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
		if err == nil && n != 8 {
			err = io.ErrShortWrite
		}
		p.over <- err
	}()
	var fault [32]byte
	_, err = unix.Read(p.faults, fault[:]) // once the system call has pinned the page, and waits
	blackbox.Must(t, errors.Join(err, unix.Munmap(m), f.Close()))
	return p
}

// write lets the system call go on.
func (p *pinned) write(t *testing.T) {
	t.Helper()
	page := bytes.Repeat([]byte("X"), len(p.from))
	ioctl(t, p.faults, uffdCopy, &[5]uint64{uint64(uintptr(unsafe.Pointer(&p.from[0]))), uint64(uintptr(unsafe.Pointer(&page[0]))), uint64(len(page))})
	blackbox.Must(t, errors.Join(<-p.over, unix.Close(p.faults), unix.Munmap(p.from)))
}

func ioctl[T any](t *testing.T, fd int, request uintptr, argument *T) {
	t.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(argument))); errno != 0 {
		t.Fatalf("ioctl %x: %v", request, errno)
	}
}

// TestPinnedPages: a page of a shared mapping that a system call has pinned is a pen, too. What was published never changes. In memory (tmpfs)
// the daemon cannot see the page, and verify finds the change.
func TestPinnedPages(t *testing.T) {
	mount(t).End(t) // skips where nothing can be mounted
	t.Run("xfs", func(t *testing.T) {
		t.Parallel()
		v := onXFS(t)
		pinAndPublish(t, v, false)
		pinPast(t, v)
	})
	t.Run("btrfs", func(t *testing.T) {
		t.Parallel()
		v := onLoop(t, []string{"mkfs.btrfs", "-q"})
		pinAndPublish(t, v, false)
		pinPast(t, v)
	})
	t.Run("ext4", func(t *testing.T) {
		t.Parallel()
		v := mountAt(t, small(t))
		pinAndPublish(t, v, true)
		pinPast(t, v)
	})
	t.Run("tmpfs", func(t *testing.T) {
		t.Parallel()
		v := mountAt(t, onTmpfs(t))
		p := pinPage(t, mappedFile(t, v, "step"))
		blackbox.Must(t, v.Publish("step"))
		p.write(t)
		if code, out, errs := run(t, "checkpoint", "verify", filepath.Join(v.Dir, "step")); code == 0 || !strings.Contains(out+errs, `"file"`) {
			t.Errorf("verify: %d %s%s", code, out, errs)
		}
	})
}

// onTmpfs mounts a tmpfs.
func onTmpfs(t *testing.T) string {
	t.Helper()
	point := suite.NewDir(t)
	blackbox.Must(t, unix.Mount("none", point, "tmpfs", 0, "mode=0777,size=64m"))
	t.Cleanup(func() { blackbox.Must(t, unix.Unmount(point, 0)) })
	return point
}

// mappedFile makes a draft with a file, and opens that for reading and writing.
func mappedFile(t *testing.T, v *volumetest.Volume, name string) *os.File {
	t.Helper()
	dir := v.Draft(t, name, map[string]string{"file": strings.Repeat("x", 100_000), "other": "bytes"})
	f, err := os.OpenFile(dir+"/file", os.O_RDWR, 0)
	blackbox.Must(t, err)
	return f
}

func pinAndPublish(t *testing.T, v *volumetest.Volume, replaced bool) {
	f := mappedFile(t, v, "step")
	reader, err := os.Open(v.Path("step.tmp", "other")) // written, but never mapped for writing: readers are no reason to wait
	blackbox.Must(t, err)
	m, err := unix.Mmap(int(reader.Fd()), 0, 5, unix.PROT_READ, unix.MAP_SHARED)
	blackbox.Must(t, err)
	p := pinPage(t, f)
	if replaced {
		blackbox.Must(t, errors.Join(unix.Munmap(m), reader.Close()))
		v.Kill(t)
	} else {
		volumetest.Want(t, "publish with a page pinned", v.Publish("step"), unix.EBUSY)
	}
	code, out, errs := run(t, "publish", v.Path("step.tmp"))
	if code == 0 || !strings.Contains(out+errs, `"file"`) || !strings.Contains(out+errs, "of its pages are in use") {
		t.Errorf("publish: %d %s%s", code, out, errs)
	}
	p.write(t)
	blackbox.Must(t, v.Publish("step"))
	if !replaced {
		blackbox.Must(t, errors.Join(unix.Munmap(m), reader.Close()))
	}
	text, err := os.ReadFile(v.Path("step", "file"))
	if err != nil || !bytes.HasPrefix(text, []byte("XXXXXXXXxx")) {
		t.Errorf("it has %.10q, %v", text, err)
	}
	if code, out, errs := run(t, "checkpoint", "verify", filepath.Join(v.Dir, "step")); code != 0 {
		t.Errorf("verify: %d %s%s", code, out, errs)
	}
	blackbox.Must(t, os.Remove(v.Path("step")))
}

// pinPast is the same with a writer past FUSE, whose pen is open for reading and writing.
func pinPast(t *testing.T, v *volumetest.Volume) {
	d, err := control.BeginDraft(t.Context(), v.Path("past"), 0, 1, "test")
	blackbox.Must(t, err)
	data := bytes.Repeat([]byte("x"), 100_000)
	first, pens, err := d.Add(t.Context(), control.NewFile{Name: "file", Size: int64(len(data))})
	blackbox.Must(t, err)
	_, err = pens[0].Write(data)
	blackbox.Must(t, errors.Join(err, pens[0].Truncate(int64(len(data))), pens[0].Sync()))
	p := pinPage(t, pens[0])
	blackbox.Must(t, d.Seal(t.Context(), first, volumetest.SumsOf(data)))
	volumetest.Want(t, "publish past FUSE with a page pinned", d.Publish(t.Context(), 1, int64(len(data))), unix.EBUSY)
	p.write(t)
	blackbox.Must(t, d.Publish(t.Context(), 1, int64(len(data))))
	blackbox.Must(t, os.Remove(v.Path("past")))
}
