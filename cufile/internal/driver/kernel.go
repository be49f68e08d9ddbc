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

// Kernels are ours, those that were loaded in one context. The zero value has none.
type Kernels struct {
	mu     sync.Mutex
	loaded map[KernelCode]kernel // guarded by mu
}

type kernel struct{ module, fn Handle }

// Load compiles a kernel the first time.
func (k *Kernels) Load(cu *CUDA, code KernelCode) (fn Handle, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known, ok := k.loaded[code]; ok {
		return known.fn, nil
	}
	ptx := map[KernelCode]string{GatherKernel: gatherPTX, WidenKernel: widenPTX, SequencesKernel: sequencesPTX}
	module, fn, err := cu.loadFunction(ptx[code], string(code))
	if err != nil {
		return 0, fmt.Errorf("load the kernel %s (its PTX needs driver 525 or later): %w", code, err)
	}
	if k.loaded == nil {
		k.loaded = map[KernelCode]kernel{}
	}
	k.loaded[code] = kernel{module, fn}
	return fn, nil
}

// Unload gives all back. The thread has their context.
func (k *Kernels) Unload(cu *CUDA) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, known := range k.loaded {
		errs = append(errs, cu.unloadModule(known.module))
	}
	clear(k.loaded)
	return errors.Join(errs...)
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

// hostBlocks is how many blocks the gather kernel has at most that writes to memory of the host. On an H100 it moved 38 GB/s with 16, and no more with
// 4,096. A product of matrices beside it, alone at 726 TFLOPS, went on at 564 and at 312.
const (
	mostBlocks = 4096
	hostBlocks = 16
)

// launch starts a kernel on a stream, with a warp for each of count pieces, and so many blocks at most.
func (c *CUDA) launch(fn Handle, count, most int64, stream Handle, parameters ...unsafe.Pointer) error {
	const threads, perWarp = 256, 32
	blocks := min((count*perWarp+threads-1)/threads, mostBlocks, most)
	err := c.call(cuLaunchKernel, "cuLaunchKernel", uintptr(fn), uintptr(blocks), 1, 1, threads, 1, 1, 0, uintptr(stream),
		uintptr(unsafe.Pointer(&parameters[0])), 0)
	runtime.KeepAlive(parameters)
	return err
}

// LaunchGather starts hbmfs_gather(pieces, count) on a stream, see gather.cu.
func (c *CUDA) LaunchGather(fn Handle, pieces Pointer, count uint32, toHost bool, stream Handle) error {
	most := int64(mostBlocks)
	if toHost {
		most = hostBlocks
	}
	return c.launch(fn, int64(count), most, stream, unsafe.Pointer(&pieces), unsafe.Pointer(&count))
}

// Widening says how hbmfs_widen changes the elements of its pieces.
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
	return c.launch(fn, int64(count), mostBlocks, stream, unsafe.Pointer(&pieces), unsafe.Pointer(&count), unsafe.Pointer(&how.To), unsafe.Pointer(&how.Beside),
		unsafe.Pointer(&how.From), unsafe.Pointer(&how.Size), unsafe.Pointer(&how.Signed))
}

// SequencesMemory is where hbmfs_sequences writes. An output at address 0 is not written.
type SequencesMemory struct {
	Begins, Positions, Numbers Pointer // all three, or none

	Target  Pointer // of tokens, of which padding becomes Pad
	Element uint32  // bytes of a token
	Pad     uint64
}

// LaunchSequences starts hbmfs_sequences(borders, documents, count, begins, positions, numbers, target, element, pad) on a stream, see
// sequences.cu.
func (c *CUDA) LaunchSequences(fn Handle, borders, documents Pointer, count uint32, to *SequencesMemory, stream Handle) error {
	return c.launch(fn, int64(count)+1, mostBlocks, stream, unsafe.Pointer(&borders), unsafe.Pointer(&documents), unsafe.Pointer(&count), unsafe.Pointer(&to.Begins),
		unsafe.Pointer(&to.Positions), unsafe.Pointer(&to.Numbers), unsafe.Pointer(&to.Target), unsafe.Pointer(&to.Element), unsafe.Pointer(&to.Pad))
}
