package cufile

import (
	"context"
	"os"

	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/direct"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/sequences"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// The types of the packages below that callers see.
type (
	// Libraries names the shared libraries to load instead of the system's.
	Libraries = driver.Libraries
	// GPU describes one GPU.
	GPU = driver.GPU
	// CUDAError is a failed call into libcuda.
	CUDAError = driver.CUDAError
	// CuFileError is a failed call into libcufile.
	CuFileError = driver.CuFileError
	// Proof is a probe's answer about Direct for one file.
	Proof = direct.Proof
	// Verdict is a probe's finding about a path.
	Verdict = direct.Verdict
	// Memory is memory of the caller on the Reader's device.
	Memory = device.Memory
	// Allocation is memory of a GPU for callers without an allocator of their own. It outlives the Reader.
	Allocation = device.Allocation
	// ChangedError says how a file changed at the source, and since when its bytes may be wrong. It wraps ErrShort or control.ErrStale.
	ChangedError = source.ChangedError
	// Sequences are the documents of a batch of tokens, for [BeginBatch].
	Sequences = sequences.Sequences
)

// The verdicts.
const (
	Proven  = direct.Proven  // every read went by DMA between the storage and HBM
	Refuted = direct.Refuted // it failed, or bytes went through host memory
	Unknown = direct.Unknown // nothing proves either
)

// Prove runs the command, whose body is [RunProbe], on an open file. cuFile keeps its settings and counters per process,
// and a broken set-up can crash or hang. So only a process of its own can be asked strictly.
func Prove(ctx context.Context, command []string, l Libraries, device int, file *os.File) Proof {
	return direct.Prove(ctx, command, l, device, file)
}
