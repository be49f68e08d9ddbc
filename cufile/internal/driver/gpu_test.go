package driver

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
)

func TestGPUsAreDescribed(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the fake GPU needs a C compiler: ", err)
	}
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	dir := t.TempDir()
	if err := fakegpu.Compile(dir, fakegpu.CUDA, fakegpu.NVML); err != nil {
		t.Fatal(err)
	}
	l := Libraries{CUDA: filepath.Join(dir, fakegpu.CUDA), NVML: filepath.Join(dir, fakegpu.NVML)}
	cu, err := LoadCUDA(l.CUDA)
	if err != nil {
		t.Fatal(err)
	}
	var gpus [2]GPU
	for i := range gpus {
		if gpus[i], err = Describe(cu, l, i); err != nil {
			t.Fatal(err)
		}
	}
	if gpus[1].Name != "Fake GPU 1" || gpus[1].UUID != "GPU-01020304-0506-0708-090a-0b0c0d0e0f11" || gpus[1].PCI != "ffff:01:00.0" || gpus[1].NUMA != -1 {
		t.Errorf("%+v", gpus)
	}
	// With cgo NVML is asked; without, the note says so.
	if gpus[0].Note == "" && (gpus[0].BAR1 != 32<<30 || gpus[0].PCIeGeneration != 5 || gpus[0].PCIeWidth != 16) {
		t.Errorf("NVML said %+v", gpus[0])
	}
}

func TestCopiesBeginTogetherWhereTheDriverCan(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the fake GPU needs a C compiler: ", err)
	}
	for name, c := range map[string]struct {
		library, refuses string
		calls            uint64
	}{
		"CUDA 13":                   {fakegpu.CUDA, "", 2},
		"CUDA 12.8":                 {fakegpu.CUDAWithoutKernels, "", 2},
		"a driver that refuses one": {fakegpu.CUDA, "1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_NO_BATCH", c.refuses)
			dir := t.TempDir()
			if err := fakegpu.Compile(dir, c.library); err != nil {
				t.Fatal(err)
			}
			cu, err := LoadCUDA(filepath.Join(dir, c.library))
			if err != nil {
				t.Fatal(err)
			}
			context, err := cu.RetainPrimary(0)
			must(t, err)
			must(t, cu.Within(context, func() error {
				copyThereAndBack(t, cu)
				return nil
			}))
			if calls, err := fakegpu.Ask(filepath.Join(dir, c.library), "fake_cuda_batches"); calls != c.calls || err != nil {
				t.Errorf("%d calls began several copies, want %d (%v)", calls, c.calls, err)
			}
			if n, err := fakegpu.Ask(filepath.Join(dir, c.library), "fake_cuda_violations"); n != 0 || err != nil {
				t.Errorf("%d violations (%v)", n, err)
			}
		})
	}
}

// copyThereAndBack turns four parts of memory around on their way to the GPU, and again on their way back.
func copyThereAndBack(t *testing.T, cu *CUDA) {
	const parts, size = 4, 1000
	memory, err := unix.Mmap(-1, 0, 2*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	must(t, err)
	must(t, cu.Register(memory, HostPortable|HostDeviceMap))
	hbm, err := cu.Alloc(parts * size)
	must(t, err)
	stream, err := cu.NewStream()
	must(t, err)
	for i := range parts * size {
		memory[i] = byte(i / 3)
	}
	var in, out Copies
	for i := range parts {
		to := hbm + Pointer((parts-1-i)*size)
		in.Add(to, Address(memory[i*size:]), size)
		out.Add(Address(memory[4096+i*size:]), to, size)
	}
	must(t, cu.CopyAll(&in, true, stream))
	must(t, cu.CopyAll(&out, false, stream))
	must(t, cu.CopyAll(&Copies{}, true, stream)) // nothing
	must(t, cu.Synchronize(stream))
	if !bytes.Equal(memory[:parts*size], memory[4096:][:parts*size]) {
		t.Error("other bytes came back")
	}
	must(t, cu.DestroyStream(stream))
	must(t, cu.Free(hbm))
	must(t, cu.Unregister(memory))
	must(t, unix.Munmap(memory))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
