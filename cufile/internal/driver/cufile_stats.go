package driver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"
)

// WayCounts are one GPU's counters of the ways by which cuFile read, or wrote: CUfilePerGpuStats_t of cufile.h 1.15.1.
type WayCounts struct {
	P2P, NVFS, POSIX, Unaligned uint64
}

// Layout of CUfileStatsLevel3_t. cuFile 1.19 put 112 bytes of new counters before the per-GPU part without a new
// symbol (NVIDIA/cuda-python issue 2794), so the layout follows from the version.
const (
	statsLevel3Size = 5000 // cufile.h 1.15.1
	statsGPUCount   = 1024 // u32: how many entries follow
	statsFirstGPU   = 1032
	statsGPUSize    = 248
	statsMostGPUs   = 16
	statsShift119   = 112
	statsVersion119 = 1190
	statsKnownUpTo  = 1200 // a layout newer than we know must not be guessed at
	statsBuffer     = 16 << 10
	statsPoison     = 0xA5
	gpuReads        = 56 // the first of four counters: P2P, NVFS, POSIX, unaligned
	gpuWrites       = 160
)

// ErrStatsUnknown says that the statistics cannot be read, so that nothing can be proven by them.
var ErrStatsUnknown = errors.New("cuFile's statistics are not readable")

// StartCounting sets the counters to zero and starts them.
func (l *CuFile) StartCounting() error {
	if !l.counts() {
		return fmt.Errorf("%w: %s %s has none (1.15 and later do)", ErrStatsUnknown, l.lib.name, l.versionText())
	}
	if err := l.call(cfSetStatsLevel, "cuFileSetStatsLevel", 3); err != nil {
		return err
	}
	if err := l.call(cfStatsReset, "cuFileStatsReset"); err != nil {
		return err
	}
	return l.call(cfStatsStart, "cuFileStatsStart")
}

// ReadCounts gives how the GPU with this UUID read.
func (l *CuFile) ReadCounts(uuid [16]byte) (WayCounts, error) { return l.read(uuid, gpuReads) }

// WriteCounts gives how the GPU with this UUID wrote.
func (l *CuFile) WriteCounts(uuid [16]byte) (WayCounts, error) { return l.read(uuid, gpuWrites) }

func (l *CuFile) read(uuid [16]byte, first int) (WayCounts, error) {
	raw := make([]byte, statsBuffer)
	for i := range raw {
		raw[i] = statsPoison
	}
	if err := l.call(cfGetStatsL3, "cuFileGetStatsL3", uintptr(unsafe.Pointer(&raw[0]))); err != nil {
		return WayCounts{}, err
	}
	return parseStats(raw, l.version, uuid, first)
}

// parseStats finds four of one GPU's counters, from first on, in a poisoned buffer that cuFileGetStatsL3 has written to. It fails with
// ErrStatsUnknown unless everything agrees: a known version, the size that it writes, the number of GPUs, the UUID.
func parseStats(raw []byte, version int, uuid [16]byte, first int) (WayCounts, error) {
	shift := 0
	switch {
	case version <= 0 || version >= statsKnownUpTo:
		return WayCounts{}, fmt.Errorf("%w: version %d has a layout that is not known", ErrStatsUnknown, version)
	case version >= statsVersion119:
		shift = statsShift119
	}
	if len(raw) < statsLevel3Size+shift {
		return WayCounts{}, fmt.Errorf("%w: %d bytes", ErrStatsUnknown, len(raw))
	}
	for _, b := range raw[statsLevel3Size+shift:] {
		if b != statsPoison {
			return WayCounts{}, fmt.Errorf("%w: version %d wrote more than its layout holds", ErrStatsUnknown, version)
		}
	}
	n := binary.LittleEndian.Uint32(raw[statsGPUCount+shift:])
	if n == 0 || n > statsMostGPUs {
		return WayCounts{}, fmt.Errorf("%w: they list %d GPUs", ErrStatsUnknown, n)
	}
	for i := range int(n) {
		gpu := raw[statsFirstGPU+shift+i*statsGPUSize:][:statsGPUSize]
		if [16]byte(gpu) != uuid {
			continue
		}
		at := func(i int) uint64 { return binary.LittleEndian.Uint64(gpu[first+8*i:]) }
		return WayCounts{at(0), at(1), at(2), at(3)}, nil
	}
	return WayCounts{}, fmt.Errorf("%w: this GPU is not among the %d that they list", ErrStatsUnknown, n)
}
