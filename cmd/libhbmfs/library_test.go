package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/driver/fakegpu"
)

func TestCodesAreTheHeaders(t *testing.T) {
	header, err := os.ReadFile("libhbmfs.h")
	if err != nil {
		t.Fatal(err)
	}
	enum, _, _ := strings.Cut(string(header), "} hbmfs_code;")
	here := map[string]code{
		"OK": codeOK, "TIMEOUT": codeTimeout, "INVALID": codeInvalid, "CLOSED": codeClosed, "NOT_FOUND": codeNotFound,
		"PERMISSION": codePermission, "STALE": codeStale, "UNAVAILABLE": codeUnavailable, "NO_DEVICE": codeNoDevice,
		"OUT_OF_MEMORY": codeOutOfMemory, "OUT_OF_RANGE": codeOutOfRange, "TOO_LARGE": codeTooLarge, "CANCELLED": codeCancelled,
		"IO": codeIO, "FORKED": codeForked, "INTERNAL": codeInternal,
	}
	found := regexp.MustCompile(`(?m)^\tHBMFS_([A-Z_]+) = (\d+),?`).FindAllStringSubmatch(enum, -1)
	if len(found) != len(here) {
		t.Errorf("the header has %d codes, want %d", len(found), len(here))
	}
	for _, f := range found {
		if n, err := strconv.Atoi(f[2]); err != nil || code(n) != here[f[1]] {
			t.Errorf("HBMFS_%s is %s in the header, and %d here", f[1], f[2], here[f[1]])
		}
	}
}

func TestEveryErrorHasItsCode(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("read x: %w", err) }
	for _, c := range []struct {
		err   error
		want  code
		errno syscall.Errno
	}{
		{nil, codeOK, 0},
		{context.Canceled, codeCancelled, 0},
		{wrap(cufile.ErrClosed), codeClosed, 0},
		{wrap(cufile.ErrMemory), codeInvalid, 0},
		{wrap(cufile.ErrOutOfRange), codeOutOfRange, 0},
		{wrap(cufile.ErrShort), codeStale, 0},
		{wrap(control.ErrStale), codeStale, 0},
		{wrap(cufile.ErrTooLarge), codeTooLarge, 0},
		{wrap(cufile.ErrNoDevice), codeNoDevice, 0},
		{wrap(cufile.ErrNoLibrary), codeNoDevice, 0},
		{fmt.Errorf("%w: %w", cufile.ErrUnavailable, cufile.ErrNoLibrary), codeUnavailable, 0},
		{wrap(&cufile.CUDAError{Code: 2}), codeOutOfMemory, 0},
		{wrap(&cufile.CUDAError{Code: 100}), codeNoDevice, 0},
		{wrap(&cufile.CUDAError{Code: 700}), codeInternal, 0},
		{&fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}, codeNotFound, syscall.ENOENT},
		{wrap(syscall.EACCES), codePermission, syscall.EACCES},
		{wrap(syscall.ESTALE), codeStale, syscall.ESTALE},
		{wrap(syscall.ENOMEM), codeOutOfMemory, syscall.ENOMEM},
		{wrap(syscall.EIO), codeIO, syscall.EIO},
		{&otherwise{codeInvalid, errors.New("no such thing")}, codeInvalid, 0},
		{&otherwise{codeInvalid, wrap(syscall.EIO)}, codeIO, syscall.EIO},
		{errors.New("of no kind"), codeIO, 0},
	} {
		if got, errno := codeOf(c.err); got != c.want || errno != c.errno {
			t.Errorf("%v: code %d, errno %d, want %d, %d", c.err, got, errno, c.want, c.errno)
		}
	}
}

func TestClipKeepsCharactersWhole(t *testing.T) {
	for _, c := range []struct {
		text string
		size int
		want string
	}{{"", 1, ""}, {"abc", 4, "abc"}, {"abc", 3, "ab"}, {"aé", 3, "a"}, {"aé", 4, "aé"}, {"é", 2, ""}, {"a\x00b", 8, "ab"}, {"a\xff", 8, "a?"}} {
		if got := clip(c.text, c.size); got != c.want {
			t.Errorf("clip(%q, %d) = %q, want %q", c.text, c.size, got, c.want)
		}
	}
}

// fakeGPU compiles the fake libcuda.
func fakeGPU(t *testing.T) cufile.Libraries {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the fake GPU needs a C compiler: ", err)
	}
	dir := t.TempDir()
	if err := fakegpu.Compile(dir, fakegpu.CUDA); err != nil {
		t.Fatal(err)
	}
	return cufile.Libraries{CUDA: filepath.Join(dir, fakegpu.CUDA)}
}

// onEachDevice runs a test on the host and on a fake GPU, and looks for goroutines that were left.
func onEachDevice(t *testing.T, test func(t *testing.T, l *library, o readerOptions)) {
	small := cufile.Options{Threads: 3, Slot: 64 << 10, Arena: 4 << 20, Window: 256 << 10, Pinned: 1 << 20}
	for _, name := range []string{"host", "gpu"} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			o := readerOptions{Options: small}
			if o.Device = cufile.HostDevice; name == "gpu" {
				o.Device, o.Libraries = 0, fakeGPU(t)
			}
			l := newLibrary()
			l.patience = time.Minute // on a slow machine nothing hangs for seconds
			test(t, l, o)
		})
	}
}

func randomFile(t *testing.T, size int) (string, []byte) {
	t.Helper()
	data := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{5}).Read(data); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name, data
}

// memory is memory of a device, and how to look at it.
func memory(t *testing.T, l *library, reader uint64, device int, n int64) (at uintptr, look func() []byte, free func()) {
	t.Helper()
	if device == cufile.HostDevice {
		data, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		return uintptr(unsafe.Pointer(unsafe.SliceData(data))), func() []byte { return data }, func() { _ = unix.Munmap(data) }
	}
	handle, at, err := l.alloc(reader, n)
	if err != nil {
		t.Fatal(err)
	}
	look = func() []byte {
		p := make([]byte, n)
		if err := l.copyOut(handle, p, 0); err != nil {
			t.Error(err)
		}
		return p
	}
	return at, look, func() {
		if err := l.free(handle); err != nil {
			t.Error(err)
		}
	}
}

func want(t *testing.T, what string, err error, codes ...code) {
	t.Helper()
	got, _ := codeOf(err)
	for _, c := range codes {
		if got == c {
			return
		}
	}
	t.Errorf("%s: code %d, want one of %v: %v", what, got, codes, err)
}

// TestOneCodeForWhatIsNotThere asks every function for bytes that are not there.
func TestOneCodeForWhatIsNotThere(t *testing.T) {
	onEachDevice(t, func(t *testing.T, l *library, o readerOptions) {
		name, _ := randomFile(t, 10_000)
		reader, err := l.openReader(&o)
		want(t, "open a reader", err, codeOK)
		file, err := l.openFile(reader, name)
		want(t, "open a file", err, codeOK)
		at, _, free := memory(t, l, reader, o.Device, 20_000)
		to := cufile.Target{Memory: cufile.Memory{Pointer: at, Length: 20_000}}
		const huge = 1<<63 - 1
		for _, s := range []cufile.Span{{Offset: -1, Length: 1}, {Offset: 0, Length: 10_001}, {Offset: 10_001}, {Offset: 1, Length: huge}, {Offset: huge, Length: 1}, {Length: -1}} {
			_, err := l.begin(file, to, []int64{s.Offset}, s.Length)
			want(t, fmt.Sprintf("begin %+v", s), err, codeOutOfRange)
			_, err = l.begin(file, to, []int64{0, s.Offset}, s.Length)
			want(t, fmt.Sprintf("gather %+v", s), err, codeOutOfRange)
			want(t, fmt.Sprintf("prefetch %+v", s), l.prefetch(file, []cufile.Span{s}), codeOutOfRange)
		}
		if o.Device != cufile.HostDevice {
			memory, _, err := l.alloc(reader, 1000)
			want(t, "allocate", err, codeOK)
			want(t, "copy out", l.copyOut(memory, make([]byte, 10), 991), codeOutOfRange)
			want(t, "free", l.free(memory), codeOK)
		}
		free()
		want(t, "close", l.closeReader(reader), codeOK)
	})
}

// Readers, files and requests of all kinds, while others close what they use.
func TestManyUseWhatOthersClose(t *testing.T) {
	onEachDevice(t, func(t *testing.T, l *library, o readerOptions) {
		name, data := randomFile(t, 1<<20)
		for range 3 {
			reader, err := l.openReader(&o)
			if err != nil {
				t.Fatal(err)
			}
			var users sync.WaitGroup
			used := make(chan struct{}, 1000)
			for n := range 4 {
				at, look, free := memory(t, l, reader, o.Device, 4000)
				users.Go(func() {
					defer free()
					useUntilClosed(t, l, reader, name, data, cufile.Memory{Pointer: at, Length: 4000}, look, uint64(n), used)
				})
			}
			for range 40 {
				<-used
			}
			want(t, "close the reader", l.closeReader(reader), codeOK)
			users.Wait()
			if n := len(l.things); n != 0 {
				t.Errorf("%d handles are left", n)
			}
		}
	})
}

func useUntilClosed(t *testing.T, l *library, reader uint64, name string, data []byte, to cufile.Memory, look func() []byte, seed uint64, used chan<- struct{}) {
	random := rand.New(rand.NewPCG(seed, 1))
	over := []code{codeOK, codeClosed, codeCancelled}
	for round := 0; ; round++ {
		file, err := l.openFile(reader, name)
		if want(t, "open", err, over...); err != nil {
			return
		}
		offset := random.Int64N(int64(len(data)) - to.Length)
		request, err := l.begin(file, cufile.Target{Memory: to}, []int64{offset}, to.Length)
		want(t, "begin", err, over...)
		if err == nil && round%3 != 0 {
			_, err = l.waitFor(request, -1)
			want(t, "wait", err, over...)
			if err == nil && !bytes.Equal(look(), data[offset:offset+to.Length]) {
				t.Error("wrong bytes")
			}
		} else if err == nil && round%2 == 0 {
			want(t, "cancel", l.cancel(request, -1), over...)
		}
		want(t, "close the file", l.closeFile(file), codeOK, codeClosed)
		select {
		case used <- struct{}{}:
		default:
		}
	}
}

// A call that hangs in the system, as an open of a file on a dead server does, does not keep a reader or file from being
// closed: that says so, and is done again.
func TestClosingWaitsForNobodyForever(t *testing.T) {
	onEachDevice(t, func(t *testing.T, l *library, o readerOptions) {
		name, _ := randomFile(t, 1000)
		handle, err := l.openReader(&o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := find[*reader](l, handle)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := l.openFile(handle, name)
		if err != nil {
			t.Fatal(err)
		}
		leaveReader, err := r.enter("reader")
		if err != nil {
			t.Fatal(err)
		}
		l.patience = time.Millisecond
		want(t, "close the reader", l.closeReader(handle), codeTimeout)
		_, err = l.openFile(handle, name)
		want(t, "open", err, codeClosed)
		want(t, "close the reader again", l.closeReader(handle), codeTimeout)
		leaveReader()
		l.patience = time.Minute
		want(t, "close the file", l.closeFile(opened), codeOK)
		want(t, "close the reader at last", l.closeReader(handle), codeOK)
		want(t, "close the reader twice", l.closeReader(handle), codeClosed)

		if handle, err = l.openReader(&o); err != nil {
			t.Fatal(err)
		}
		if opened, err = l.openFile(handle, name); err != nil {
			t.Fatal(err)
		}
		f, err := find[*file](l, opened)
		if err != nil {
			t.Fatal(err)
		}
		leaveFile, err := f.enter("file")
		if err != nil {
			t.Fatal(err)
		}
		l.patience = time.Millisecond
		want(t, "close the file", l.closeFile(opened), codeTimeout)
		want(t, "close its reader", l.closeReader(handle), codeTimeout)
		leaveFile()
		l.patience = time.Minute
		want(t, "close the reader", l.closeReader(handle), codeOK)
		if n := len(l.things); n != 0 {
			t.Errorf("%d handles are left", n)
		}
	})
}

func TestTimeoutsChangeNothing(t *testing.T) {
	onEachDevice(t, func(t *testing.T, l *library, o readerOptions) {
		name, data := randomFile(t, 200_000)
		reader, err := l.openReader(&o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { want(t, "close", l.closeReader(reader), codeOK) }()
		file, err := l.openFile(reader, name)
		if err != nil {
			t.Fatal(err)
		}
		at, look, free := memory(t, l, reader, o.Device, int64(len(data)))
		request, err := l.begin(file, cufile.Target{Memory: cufile.Memory{Pointer: at, Length: int64(len(data))}}, []int64{0}, int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		for err = failf(codeTimeout, ""); err != nil; {
			_, err = l.waitFor(request, time.Microsecond)
			want(t, "wait", err, codeOK, codeTimeout)
		}
		if !bytes.Equal(look(), data) {
			t.Error("wrong bytes")
		}
		free()
	})
}
