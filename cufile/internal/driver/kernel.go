package driver

import (
	_ "embed"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

//go:embed gather.ptx
var gatherPTX string

//go:embed widen.ptx
var widenPTX string

//go:embed sequences.ptx
var sequencesPTX string

// KernelCode names one of our kernels.
type KernelCode string

// The kernels.
const (
	GatherKernel    KernelCode = "hbmfs_gather"    // gather.cu
	WidenKernel     KernelCode = "hbmfs_widen"     // widen.cu
	SequencesKernel KernelCode = "hbmfs_sequences" // sequences.cu
)

func (k KernelCode) ptx() string {
	switch k {
	case GatherKernel:
		return gatherPTX
	case WidenKernel:
		return widenPTX
	}
	return sequencesPTX
}

// Kernel is a kernel of ours, once it is loaded.
type Kernel struct {
	mu     sync.Mutex
	module Handle
	fn     Handle
}

// Load compiles the kernel the first time.
func (g *Kernel) Load(cu *CUDA, code KernelCode) (Handle, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fn != 0 {
		return g.fn, nil
	}
	var err error
	if g.module, g.fn, err = cu.loadFunction(code.ptx(), string(code)); err != nil {
		return 0, fmt.Errorf("load the kernel %s (its PTX needs driver 525 or later): %w", code, err)
	}
	return g.fn, nil
}

func (g *Kernel) Unload(cu *CUDA) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.module == 0 {
		return nil
	}
	module := g.module
	g.module, g.fn = 0, 0
	return cu.unloadModule(module)
}

// loadFunction compiles PTX and finds a kernel in it.
func (c *CUDA) loadFunction(ptx, name string) (module, fn Handle, err error) {
	text := cString(ptx)
	if err = c.call(cuModuleLoadData, "cuModuleLoadData", uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(text))); err != nil {
		return 0, 0, err
	}
	if err = c.call(cuModuleGetFunction, "cuModuleGetFunction", uintptr(unsafe.Pointer(&fn)), uintptr(module), uintptr(unsafe.Pointer(cString(name)))); err != nil {
		return 0, 0, errors.Join(err, c.unloadModule(module))
	}
	return module, fn, nil
}

func (c *CUDA) unloadModule(module Handle) error {
	return c.call(cuModuleUnload, "cuModuleUnload", uintptr(module))
}

// LaunchGather starts hbmfs_gather(pieces, count) on a stream, see gather.cu.
func (c *CUDA) LaunchGather(fn Handle, pieces Pointer, count uint32, stream Handle) error {
	const threads, perWarp, mostBlocks = 256, 32, 4096
	blocks := min((int64(count)*perWarp+threads-1)/threads, mostBlocks)
	parameters := [2]unsafe.Pointer{unsafe.Pointer(&pieces), unsafe.Pointer(&count)}
	err := c.call(cuLaunchKernel, "cuLaunchKernel", uintptr(fn), uintptr(blocks), 1, 1, threads, 1, 1, 0, uintptr(stream),
		uintptr(unsafe.Pointer(&parameters)), 0)
	runtime.KeepAlive(&parameters)
	return err
}

// Widening is what hbmfs_widen does with the elements of its pieces.
type Widening struct {
	To, Beside Pointer // the outputs; Beside may be 0
	From, Size uint32  // bytes of an element, before and after
	Signed     uint32  // 1 for elements with a sign
}

// The bits of a piece's length that say which output has no place for one of its elements, see widen.cu.
const (
	NotInSecond = 1 << 63 // its first one
	NotInFirst  = 1 << 62 // its last one
)

// LaunchWiden starts hbmfs_widen(pieces, count, to, beside, from, size, is_signed) on a stream, see widen.cu.
func (c *CUDA) LaunchWiden(fn Handle, pieces Pointer, count uint32, how *Widening, stream Handle) error {
	const threads, perWarp, mostBlocks = 256, 32, 4096
	blocks := min((int64(count)*perWarp+threads-1)/threads, mostBlocks)
	parameters := [7]unsafe.Pointer{unsafe.Pointer(&pieces), unsafe.Pointer(&count), unsafe.Pointer(&how.To), unsafe.Pointer(&how.Beside),
		unsafe.Pointer(&how.From), unsafe.Pointer(&how.Size), unsafe.Pointer(&how.Signed)}
	err := c.call(cuLaunchKernel, "cuLaunchKernel", uintptr(fn), uintptr(blocks), 1, 1, threads, 1, 1, 0, uintptr(stream),
		uintptr(unsafe.Pointer(&parameters)), 0)
	runtime.KeepAlive(&parameters)
	return err
}

// SequencesMemory is where hbmfs_sequences writes. What is 0 is not written.
type SequencesMemory struct {
	Begins, Positions, Numbers Pointer // all three, or none

	Target  Pointer // of tokens, of which padding becomes Pad
	Element uint32  // bytes of a token
	Pad     uint64
}

// LaunchSequences starts hbmfs_sequences(borders, documents, count, begins, positions, numbers, target, element, pad) on a stream, see
// sequences.cu.
func (c *CUDA) LaunchSequences(fn Handle, borders, documents Pointer, count uint32, to *SequencesMemory, stream Handle) error {
	const threads, perWarp, mostBlocks = 256, 32, 4096
	blocks := min(int64(count)*perWarp/threads+1, mostBlocks)
	parameters := [9]unsafe.Pointer{unsafe.Pointer(&borders), unsafe.Pointer(&documents), unsafe.Pointer(&count), unsafe.Pointer(&to.Begins),
		unsafe.Pointer(&to.Positions), unsafe.Pointer(&to.Numbers), unsafe.Pointer(&to.Target), unsafe.Pointer(&to.Element), unsafe.Pointer(&to.Pad)}
	err := c.call(cuLaunchKernel, "cuLaunchKernel", uintptr(fn), uintptr(blocks), 1, 1, threads, 1, 1, 0, uintptr(stream),
		uintptr(unsafe.Pointer(&parameters)), 0)
	runtime.KeepAlive(&parameters)
	return err
}
