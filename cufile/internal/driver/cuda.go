package driver

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pointer is an address in the GPU's address space (CUdeviceptr).
type Pointer uint64

// Handle is an opaque C handle: CUcontext, CUstream, CUevent, CUmodule, CUfunction.
type Handle uintptr

// The functions of libcuda that we call, by index.
const (
	cuInit = iota
	cuDriverGetVersion
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetPCIBusID
	cuPrimaryCtxRetain
	cuPrimaryCtxRelease
	cuCtxSetCurrent
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemHostRegister
	cuMemHostUnregister
	cuMemHostGetDevicePointer
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpyHtoD
	cuStreamCreate
	cuStreamDestroy
	cuStreamSynchronize
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuGetErrorName
	cuDeviceGetUUID
	cuModuleLoadData
	cuModuleUnload
	cuModuleGetFunction
	cuLaunchKernel
	cuCtxPushCurrent
	cuCtxPopCurrent
	cuStreamWaitEvent
	cuMemcpyDtoDAsync
	cuMemcpyDtoH
	cuPointerGetAttributes
	cuMemcpyBatchAsync
	cuMemcpyBatchAsyncOld
)

// cudaTable gives the exported names (cuda.h of CUDA 12 and 13; its macros resolve to the _v2 names).
func cudaTable() []function {
	return []function{
		cuInit:                    {names: []string{"cuInit"}},
		cuDriverGetVersion:        {names: []string{"cuDriverGetVersion"}},
		cuDeviceGetCount:          {names: []string{"cuDeviceGetCount"}},
		cuDeviceGet:               {names: []string{"cuDeviceGet"}},
		cuDeviceGetName:           {names: []string{"cuDeviceGetName"}},
		cuDeviceGetPCIBusID:       {names: []string{"cuDeviceGetPCIBusId"}},
		cuPrimaryCtxRetain:        {names: []string{"cuDevicePrimaryCtxRetain"}},
		cuPrimaryCtxRelease:       {names: []string{"cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"}},
		cuCtxSetCurrent:           {names: []string{"cuCtxSetCurrent"}},
		cuMemGetInfo:              {names: []string{"cuMemGetInfo_v2"}},
		cuMemAlloc:                {names: []string{"cuMemAlloc_v2"}},
		cuMemFree:                 {names: []string{"cuMemFree_v2"}},
		cuMemHostRegister:         {names: []string{"cuMemHostRegister_v2"}},
		cuMemHostUnregister:       {names: []string{"cuMemHostUnregister"}},
		cuMemHostGetDevicePointer: {names: []string{"cuMemHostGetDevicePointer_v2"}},
		cuMemcpyHtoDAsync:         {names: []string{"cuMemcpyHtoDAsync_v2"}},
		cuMemcpyDtoHAsync:         {names: []string{"cuMemcpyDtoHAsync_v2"}},
		cuMemcpyHtoD:              {names: []string{"cuMemcpyHtoD_v2"}},
		cuStreamCreate:            {names: []string{"cuStreamCreate"}},
		cuStreamDestroy:           {names: []string{"cuStreamDestroy_v2"}},
		cuStreamSynchronize:       {names: []string{"cuStreamSynchronize"}},
		cuEventCreate:             {names: []string{"cuEventCreate"}},
		cuEventDestroy:            {names: []string{"cuEventDestroy_v2"}},
		cuEventRecord:             {names: []string{"cuEventRecord"}},
		cuEventQuery:              {names: []string{"cuEventQuery"}},
		cuGetErrorName:            {names: []string{"cuGetErrorName"}, optional: true},
		cuDeviceGetUUID:           {names: []string{"cuDeviceGetUuid_v2", "cuDeviceGetUuid"}, optional: true},
		cuModuleLoadData:          {names: []string{"cuModuleLoadData"}, optional: true},
		cuModuleUnload:            {names: []string{"cuModuleUnload"}, optional: true},
		cuModuleGetFunction:       {names: []string{"cuModuleGetFunction"}, optional: true},
		cuLaunchKernel:            {names: []string{"cuLaunchKernel"}, optional: true},
		cuCtxPushCurrent:          {names: []string{"cuCtxPushCurrent_v2"}},
		cuCtxPopCurrent:           {names: []string{"cuCtxPopCurrent_v2"}},
		cuStreamWaitEvent:         {names: []string{"cuStreamWaitEvent"}},
		cuMemcpyDtoDAsync:         {names: []string{"cuMemcpyDtoDAsync_v2"}},
		cuMemcpyDtoH:              {names: []string{"cuMemcpyDtoH_v2"}},
		cuPointerGetAttributes:    {names: []string{"cuPointerGetAttributes"}},
		cuMemcpyBatchAsync:        {names: []string{"cuMemcpyBatchAsync_v2"}, optional: true},
		cuMemcpyBatchAsyncOld:     {names: []string{"cuMemcpyBatchAsync"}, optional: true}, // of CUDA 12.8, which later drivers have, too
	}
}

// CUDA result codes that we tell apart (cuda.h, CUresult).
const (
	cudaOutOfMemory   = 2
	cudaNoDevice      = 100
	cudaInvalidDevice = 101
	cudaNotReady      = 600
	cudaNotSupported  = 801
	cudaSystemBusy    = 802 // CUDA_ERROR_SYSTEM_NOT_READY
)

// CUDAError is a failed call into libcuda.
type CUDAError struct {
	Call string // the function, as cuda.h names it
	Code int    // CUresult
	Name string // CUDA_ERROR_..., empty where libcuda does not say
}

func (e *CUDAError) Error() string {
	text := fmt.Sprintf("%s: %s (%d)", e.Call, cmp.Or(e.Name, "error"), e.Code)
	switch e.Code {
	case cudaOutOfMemory:
		text += ": no GPU or pinnable memory is left; use a smaller arena or free the GPU"
	case cudaNoDevice:
		text += ": this machine or container shows no GPU; check nvidia-smi and the container's --gpus"
	case cudaInvalidDevice:
		text += ": no GPU has this index"
	case cudaSystemBusy:
		text += ": the driver is not ready; is the fabric manager running?"
	case 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719: // those after which a context fails for good
		text += ": the GPU, or a kernel of this process, failed, and nothing more works there: start the process again"
	}
	return text
}

// CUDA is libcuda. Its methods fail with *CUDAError. But for init and the device queries, they need a thread with a
// current context.
type CUDA struct {
	lib       *library
	unbatched atomic.Bool // the driver has cuMemcpyBatchAsync, and refuses it
	version   int         // 1000*major + 10*minor, of the CUDA version that the driver supports
}

// LoadCUDA loads libcuda and initializes it.
func LoadCUDA(name string) (*CUDA, error) {
	names := []string{"libcuda.so.1", "libcuda.so"}
	if name != "" {
		names = []string{name}
	}
	lib, err := loadLibrary(names, cudaTable())
	if err != nil {
		return nil, fmt.Errorf("no CUDA driver: install the NVIDIA driver, or run the container with its GPUs: %w", err)
	}
	c := &CUDA{lib: lib}
	if err := c.call(cuInit, "cuInit", 0); err != nil {
		return nil, err
	}
	var version int32
	if err := c.call(cuDriverGetVersion, "cuDriverGetVersion", uintptr(unsafe.Pointer(&version))); err != nil {
		return nil, err
	}
	c.version = int(version)
	return c, nil
}

// call invokes a function that returns a CUresult.
//
//go:uintptrescapes
func (c *CUDA) call(index int, name string, args ...uintptr) error {
	if !c.lib.has(index) {
		return fmt.Errorf("%w: %s has no %s: update the NVIDIA driver", ErrNoLibrary, c.lib.name, name)
	}
	result := invoke(c.lib.fn[index], args...)
	if code := int32(result); code != 0 {
		return &CUDAError{name, int(code), c.errorName(code)}
	}
	return nil
}

// errorName asks libcuda for the name of a result.
func (c *CUDA) errorName(code int32) string {
	var text *byte
	if c.lib.has(cuGetErrorName) {
		invoke(c.lib.fn[cuGetErrorName], uintptr(code), uintptr(unsafe.Pointer(&text)))
	}
	return unix.BytePtrToString(text) // one of libcuda's constants; nil for a code that it does not know
}

func (c *CUDA) deviceCount() (int, error) {
	var n int32
	err := c.call(cuDeviceGetCount, "cuDeviceGetCount", uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// device gives the CUdevice of an index, and its name, PCI address and UUID (raw; zero where libcuda has no call).
func (c *CUDA) device(index int) (dev int32, name, pci string, uuid [16]byte, err error) {
	if err = c.call(cuDeviceGet, "cuDeviceGet", uintptr(unsafe.Pointer(&dev)), uintptr(index)); err != nil {
		return dev, "", "", uuid, err
	}
	var names, addresses [256]byte
	err = errors.Join(c.call(cuDeviceGetName, "cuDeviceGetName", uintptr(unsafe.Pointer(&names)), uintptr(len(names)-1), uintptr(dev)),
		c.call(cuDeviceGetPCIBusID, "cuDeviceGetPCIBusId", uintptr(unsafe.Pointer(&addresses)), uintptr(len(addresses)-1), uintptr(dev)))
	if err == nil && c.lib.has(cuDeviceGetUUID) {
		err = c.call(cuDeviceGetUUID, "cuDeviceGetUuid", uintptr(unsafe.Pointer(&uuid)), uintptr(dev))
	}
	return dev, unix.ByteSliceToString(names[:]), unix.ByteSliceToString(addresses[:]), uuid, err
}

func (c *CUDA) RetainPrimary(dev int32) (ctx Handle, err error) {
	err = c.call(cuPrimaryCtxRetain, "cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&ctx)), uintptr(dev))
	return ctx, err
}

func (c *CUDA) ReleasePrimary(dev int32) error {
	return c.call(cuPrimaryCtxRelease, "cuDevicePrimaryCtxRelease", uintptr(dev))
}

// SetCurrent makes ctx current on the calling thread, which must be locked.
func (c *CUDA) SetCurrent(ctx Handle) error {
	return c.call(cuCtxSetCurrent, "cuCtxSetCurrent", uintptr(ctx))
}

// MemInfo gives the free and total HBM in bytes.
func (c *CUDA) MemInfo() (free, total uint64, err error) {
	err = c.call(cuMemGetInfo, "cuMemGetInfo", uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, total, err
}

func (c *CUDA) Alloc(n int64) (p Pointer, err error) {
	err = c.call(cuMemAlloc, "cuMemAlloc", uintptr(unsafe.Pointer(&p)), uintptr(n))
	return p, err
}

func (c *CUDA) Free(p Pointer) error { return c.call(cuMemFree, "cuMemFree", uintptr(p)) }

// Flags of cuMemHostRegister (cuda.h).
const (
	HostPortable  = 0x01
	HostDeviceMap = 0x02
	HostReadOnly  = 0x08
)

// Register pins host memory, which must be page aligned and must not be Go's, and maps it for the GPU.
func (c *CUDA) Register(memory []byte, flags uint32) error {
	return c.call(cuMemHostRegister, "cuMemHostRegister", uintptr(unsafe.Pointer(unsafe.SliceData(memory))), uintptr(len(memory)), uintptr(flags))
}

func (c *CUDA) Unregister(memory []byte) error {
	return c.call(cuMemHostUnregister, "cuMemHostUnregister", uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
}

// DeviceAddress gives the address by which the GPU reads registered host memory.
func (c *CUDA) DeviceAddress(memory []byte) (p Pointer, err error) {
	err = c.call(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer", uintptr(unsafe.Pointer(&p)),
		uintptr(unsafe.Pointer(unsafe.SliceData(memory))), 0)
	return p, err
}

// CopyIn starts a copy to HBM on a stream. from must stay pinned and unchanged until the stream has passed it.
func (c *CUDA) CopyIn(to Pointer, from []byte, stream Handle) error {
	return c.call(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync", uintptr(to), uintptr(unsafe.Pointer(unsafe.SliceData(from))), uintptr(len(from)), uintptr(stream))
}

// CopyPageable copies any memory to HBM and waits: the driver stages it.
func (c *CUDA) CopyPageable(to Pointer, from []byte) error {
	return c.call(cuMemcpyHtoD, "cuMemcpyHtoD", uintptr(to), uintptr(unsafe.Pointer(unsafe.SliceData(from))), uintptr(len(from)))
}

// CopyOut starts a copy from HBM on a stream.
func (c *CUDA) CopyOut(to []byte, from Pointer, stream Handle) error {
	return c.call(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync", uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(from), uintptr(len(to)), uintptr(stream))
}

// NewStream makes a stream that does not wait for the default stream.
func (c *CUDA) NewStream() (s Handle, err error) {
	const nonBlocking = 1
	err = c.call(cuStreamCreate, "cuStreamCreate", uintptr(unsafe.Pointer(&s)), nonBlocking)
	return s, err
}

func (c *CUDA) DestroyStream(s Handle) error {
	return c.call(cuStreamDestroy, "cuStreamDestroy", uintptr(s))
}

func (c *CUDA) Synchronize(s Handle) error {
	return c.call(cuStreamSynchronize, "cuStreamSynchronize", uintptr(s))
}

// NewEvent makes an event without a time stamp, which wakes nobody. Either of them has the bus stand still for 1.5
// us, 2% of a copy of 4 MiB.
func (c *CUDA) NewEvent() (e Handle, err error) {
	const disableTiming = 2
	err = c.call(cuEventCreate, "cuEventCreate", uintptr(unsafe.Pointer(&e)), disableTiming)
	return e, err
}

func (c *CUDA) DestroyEvent(e Handle) error {
	return c.call(cuEventDestroy, "cuEventDestroy", uintptr(e))
}

func (c *CUDA) Record(e, stream Handle) error {
	return c.call(cuEventRecord, "cuEventRecord", uintptr(e), uintptr(stream))
}

// Wait asks for an event until it has come, and sleeps in between: cuEventSynchronize would burn the CPU.
func (c *CUDA) Wait(e Handle) error {
	const least = 20 * time.Microsecond // of a sleep: a shorter one costs as much CPU as asking again
	for began := time.Now(); ; Pause(began, least) {
		if came, err := c.Came(e); came || err != nil {
			return err
		}
	}
}

// Came says whether an event has come.
func (c *CUDA) Came(e Handle) (bool, error) {
	switch code := int32(invoke(c.lib.fn[cuEventQuery], uintptr(e))); code {
	case 0:
		return true, nil
	case cudaNotReady:
		return false, nil
	default:
		return false, &CUDAError{"cuEventQuery", int(code), c.errorName(code)}
	}
}

// Pause sleeps between two questions about work that has been waited for since began, at least so long.
func Pause(began time.Time, least time.Duration) {
	pause := unix.NsecToTimespec(int64(min(max(least, time.Since(began)/8), time.Millisecond)))
	_ = unix.Nanosleep(&pause, nil) // a signal only makes it ask earlier
}
