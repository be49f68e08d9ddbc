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
	"runtime"
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
	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
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
		"EXISTS": codeExists, "BUSY": codeBusy, "FORMAT": codeFormat,
		"IO": codeIO, "FORKED": codeForked, "INTERNAL": codeInternal, "WRITE": codeWrite,
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
		{wrap(syscall.EROFS), codePermission, syscall.EROFS},
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

// TestCodesOfKVVolumes: a mount that keeps no blocks is told from one that is read-only here.
func TestCodesOfKVVolumes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want code
	}{{control.ErrNoKV, codeUnavailable}, {control.ErrNoSocket, codeUnavailable}, {syscall.EROFS, codePermission}, {syscall.EACCES, codePermission}, {syscall.EINVAL, codeInvalid}} {
		err := &otherwise{codeInvalid, kvCode(fmt.Errorf("open: %w", c.err))}
		if got, _ := codeOf(err); got != c.want {
			t.Errorf("%v: code %d, want %d", c.err, got, c.want)
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
			before := goleak.IgnoreCurrent()
			defer func() {
				if err := leaks.Goroutines(before); err != nil {
					t.Error(err)
				}
			}()
			o := readerOptions{Options: small}
			if o.Device = cufile.HostDevice; name == "gpu" {
				o.Device, o.Libraries = 0, fakeGPU(t)
			}
			test(t, newLibrary(), o)
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
			want(t, fmt.Sprintf("prefetch %+v", s), l.prefetch(file, []int64{s.Offset}, []int64{s.Length}), codeOutOfRange)
		}
		if o.Device != cufile.HostDevice {
			memory, _, err := l.alloc(reader, 1000)
			want(t, "allocate", err, codeOK)
			want(t, "copy out", l.copyOut(memory, make([]byte, 10), 991), codeOutOfRange)
			want(t, "free", l.free(memory), codeOK)
		}
		free()
		closing(t, "close", l.closeReader, reader)
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
			closing(t, "close the reader", l.closeReader, reader)
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
		closing(t, "close the file", l.closeFile, file, codeClosed)
		select {
		case used <- struct{}{}:
		default:
		}
	}
}

// closing closes until no call is under way any more: on a slow machine that may take longer than closing waits.
func closing(t *testing.T, what string, closes func(uint64) error, handle uint64, or ...code) {
	t.Helper()
	err := closes(handle)
	for deadline := time.Now().Add(time.Minute); errors.Is(err, cufile.ErrUnderWay) && time.Now().Before(deadline); {
		err = closes(handle)
	}
	want(t, what, err, append(or, codeOK)...)
}

// A call that hangs in the system, as an open of a file on a dead server does, does not keep a reader from being closed:
// that says so, and is done again. A pipe without a writer is such a file.
func TestClosingWaitsForNobodyForever(t *testing.T) {
	onEachDevice(t, func(t *testing.T, l *library, o readerOptions) {
		name, _ := randomFile(t, 1000)
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		handle, err := l.openReader(&o)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := l.openFile(handle, name)
		if err != nil {
			t.Fatal(err)
		}
		hung := make(chan error, 1)
		go func() {
			_, err := l.openFile(handle, pipe)
			hung <- err
		}()
		awaitStack(t, "cufile.(*Reader).Open")
		for range 2 {
			want(t, "close the reader", l.closeReader(handle), codeTimeout)
			_, err = l.openFile(handle, name)
			want(t, "open", err, codeClosed)
		}
		closing(t, "close the file", l.closeFile, opened)
		writer, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = writer.Close() }() // nothing is written
		if err := <-hung; err == nil {
			t.Error("a pipe was opened")
		}
		closing(t, "close the reader at last", l.closeReader, handle)
		want(t, "close the reader twice", l.closeReader(handle), codeClosed)
		if n := len(l.things); n != 0 {
			t.Errorf("%d handles are left", n)
		}
	})
}

// awaitStack waits until a goroutine is in a function.
func awaitStack(t *testing.T, function string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(time.Minute); !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(function)); {
		if time.Now().After(deadline) {
			t.Fatal("it does not begin: ", function)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestClosingWhileTheGPUHangs closes a file that a request reads from, which does not end. Its memory must stay, and so do the
// handles; closing cancels the request, and is done again.
func TestClosingWhileTheGPUHangs(t *testing.T) {
	name, data := randomFile(t, 200_000)
	o := readerOptions{Options: cufile.Options{Threads: 1, Slot: 64 << 10, Arena: 4 << 20, Libraries: fakeGPU(t)}}
	l := newLibrary()
	handle, err := l.openReader(&o)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := l.openFile(handle, name)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(len(data))
	at, _, free := memory(t, l, handle, 0, n)
	askGPU(t, o.Libraries, "fake_cuda_hold")
	request, err := l.begin(opened, cufile.Target{Memory: cufile.Memory{Pointer: at, Length: n}}, []int64{0}, n)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); askGPU(t, o.Libraries, "fake_cuda_pending") == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is copied")
		}
	}
	want(t, "close the file", l.closeFile(opened), codeTimeout)
	want(t, "close its reader", l.closeReader(handle), codeTimeout)
	_, err = l.waitFor(request, 0)
	want(t, "wait", err, codeTimeout)
	askGPU(t, o.Libraries, "fake_cuda_go_on")
	_, err = l.waitFor(request, -1)
	want(t, "wait again", err, codeCancelled)
	closing(t, "close the reader at last", l.closeReader, handle)
	want(t, "close the file of a reader that is closed", l.closeFile(opened), codeClosed)
	free()
	if n := len(l.things); n != 0 {
		t.Errorf("%d handles are left", n)
	}
}

func askGPU(t *testing.T, l cufile.Libraries, name string) uint64 {
	t.Helper()
	n, err := fakegpu.Ask(l.CUDA, name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTimeoutsChangeNothing(t *testing.T) {
	onEachDevice(t, func(t *testing.T, l *library, o readerOptions) {
		name, data := randomFile(t, 200_000)
		reader, err := l.openReader(&o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { closing(t, "close", l.closeReader, reader) }()
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
