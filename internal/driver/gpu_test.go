package driver

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/internal/driver/fakegpu"
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
