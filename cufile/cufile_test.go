package cufile

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

func TestGPUErrorsNameTheFix(t *testing.T) {
	for name, c := range map[string]struct {
		env, value string
		o          Options
		want       string
	}{
		"no GPU":           {"FAKE_CUDA_DEVICES", "0", Options{}, "shows no GPU; check nvidia-smi"},
		"index too large":  {"FAKE_CUDA_DEVICES", "2", Options{Device: 2}, "gpu 2 does not exist: this process sees gpu 0 to 1"},
		"HBM is full":      {"FAKE_CUDA_MEMORY", "1000000", Options{}, "use a smaller arena"},
		"cannot pin":       {"FAKE_CUDA_PINNABLE", "100000", Options{}, "of host memory for each of 3 threads"},
		"no libcufile":     {"", "", Options{Path: Compat}, "install NVIDIA's gds-tools"},
		"no probe command": {"", "", Options{Path: Direct}, "no command to prove it with"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.env != "" {
				t.Setenv(c.env, c.value)
			}
			o := smallOptions(fakeLibraries(t), c.o.Path)
			o.Device, o.Probe = c.o.Device, nil
			if name == "no libcufile" {
				o.Libraries.CuFile = "libcufile-that-is-not-there.so"
			}
			r, err := New(t.Context(), o)
			if err == nil {
				file, _ := randomFile(t, 100_000, 1)
				_, err = r.Open(t.Context(), file)
				if closeErr := r.Close(); closeErr != nil {
					t.Error(closeErr)
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want one that says %q", err, c.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			for _, left := range []string{"fake_cuda_pinned", "fake_cuda_hbm", "fake_cuda_retained"} {
				if n := ask(t, o.Libraries.CUDA, left); n != 0 {
					t.Errorf("%s is %d after the failure, want 0", left, n)
				}
			}
		})
	}
}

func TestCuFileErrorsAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		env, value string
		code       int // 0: not cuFile's
		want       string
	}{
		"register 5030":      {"FAKE_CUFILE_REGISTER", "5030", 5030, "/run/udev"},
		"register 5016":      {"FAKE_CUFILE_REGISTER", "5016", 5016, "max_device_pinned_mem_size_kb"},
		"read 5027 in errno": {"FAKE_CUFILE_READ", "errno:5027", 5027, "HANDLE_NOT_REGISTERED"},
		"read -5016":         {"FAKE_CUFILE_READ", "code:5016", 5016, "INVALID_MAPPING_SIZE"},
		"read EIO":           {"FAKE_CUFILE_READ", "errno:5", 0, "input/output error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(c.env, c.value)
			file, _ := randomFile(t, 100_000, 1)
			f := openFileIn(t, newReader(t, smallOptions(fakeLibraries(t), Compat)), file)
			_, err := f.Read(t.Context(), 0, 50_000)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want one that says %q", err, c.want)
			}
			var cf *driver.CuFileError
			if errors.As(err, &cf) != (c.code != 0) || (cf != nil && cf.Code != c.code) {
				t.Errorf("%v is %+v, want code %d", err, cf, c.code)
			}
			if c.code == 0 && !errors.Is(err, syscall.EIO) {
				t.Errorf("%v is not EIO", err)
			}
		})
	}
}

func TestShortReadsAreContinued(t *testing.T) {
	t.Setenv("FAKE_CUFILE_READ", "short")
	file, data := randomFile(t, 50_000, 2)
	f := openFileIn(t, newReader(t, smallOptions(fakeLibraries(t), Compat)), file)
	v, err := f.Read(t.Context(), 333, 40_000)
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, v); string(got) != string(data[333:40_333]) {
		t.Error("wrong bytes")
	}
}

func TestOldLibcufile(t *testing.T) {
	l := fakeLibraries(t)
	l.CuFile = fakes.Copy(t, fakegpu.OldCuFile)
	file, _ := randomFile(t, 50_000, 3)
	f := openFileIn(t, newReader(t, smallOptions(l, Compat)), file)
	v, err := f.Read(t.Context(), 0, 50_000)
	if err != nil {
		t.Fatalf("compat needs nothing new: %v", err)
	}
	v.Release()
	if _, err := New(t.Context(), smallOptions(l, Direct)); err == nil || !strings.Contains(err.Error(), "update it to CUDA 12.9") {
		t.Errorf("direct with an old libcufile: %v, want one that says to update", err)
	}
}

func TestHangInLibcufileEndsWithTheContext(t *testing.T) {
	t.Setenv("FAKE_CUFILE_READ", "wait")
	file, _ := randomFile(t, 50_000, 4)
	o := smallOptions(fakeLibraries(t), Compat)
	defer ask(t, o.Libraries.CuFile, "fake_cufile_go_on")
	r, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { _, err := f.Read(ctx, 0, 50_000); ended <- err }()
	eventually(t, "libcufile is called", func() bool { return ask(t, o.Libraries.CuFile, "fake_cufile_reading") > 0 })
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that it was cancelled", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on after its context")
	}
	// The thread is lost, the memory it may write to stays taken, and the others go on.
	if n, err := r.arena.Reserve(t.Context(), o.Arena-1<<20); err != nil {
		t.Error(err)
	} else {
		r.arena.Free(n, o.Arena-1<<20)
	}
	late, giveUp := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer giveUp()
	if _, err := r.arena.Reserve(late, o.Arena); err == nil {
		t.Error("memory that the hung call may still write to was handed out")
	}
}

func TestDirectOnlyWhenProven(t *testing.T) {
	for name, c := range map[string]struct {
		moved, version, read, register string
		proven                         bool
		want                           string
	}{
		"nvidia-fs":           {moved: "nvfs", proven: true},
		"p2pdma":              {moved: "p2p", proven: true},
		"newer layout":        {moved: "nvfs", version: "1190", proven: true},
		"posix":               {moved: "posix", want: "refuted: cuFile counted 8 POSIX reads"},
		"unaligned":           {moved: "unaligned", want: "refuted: cuFile bounced"},
		"not counted":         {moved: "nothing", want: "unknown: cuFile counted 0 DMA reads"},
		"layout of tomorrow":  {moved: "nvfs", version: "1200", want: "unknown"},
		"cannot register":     {moved: "nvfs", register: "5030", want: "refuted"},
		"reads nothing":       {moved: "nvfs", read: "errno:5", want: "refuted"},
		"reads other bytes":   {moved: "nvfs", read: "wrong", want: "refuted: cuFile brought other bytes"},
		"crashes the process": {moved: "nvfs", read: "crash", want: "refuted: the probe died"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FAKE_CUFILE_MOVED", c.moved)
			t.Setenv("FAKE_CUFILE_VERSION", c.version)
			t.Setenv("FAKE_CUFILE_READ", c.read)
			t.Setenv("FAKE_CUFILE_REGISTER", c.register)
			o := smallOptions(fakeLibraries(t), Direct)
			r := newReader(t, o)
			if compat := ask(t, o.Libraries.CuFile, "fake_cufile_compat"); compat != 0 {
				t.Error("compat mode is allowed on the direct path")
			}
			file, _ := randomFile(t, 9<<20, 5)
			f, err := r.Open(t.Context(), file)
			if err == nil {
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
			if c.proven != (err == nil) {
				t.Fatalf("%v, proven should be %v", err, c.proven)
			}
			if err != nil && (!errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want one that says %q", err, c.want)
			}
		})
	}
}
