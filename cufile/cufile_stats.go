package cufile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"
)

// readCounts are one GPU's counters of how cuFile moved what was read: CUfilePerGpuStats_t of cufile.h 1.15.1.
type readCounts struct {
	p2p, nvfs, posix, unaligned uint64
}

// Layout of CUfileStatsLevel3_t. cuFile 1.19 put 112 bytes of new counters before the per-GPU part without a new
// symbol (NVIDIA/cuda-python issue 2794), so the layout follows from the version.
const (
	statsLevel3Size  = 5000 // cufile.h 1.15.1
	statsGPUCount    = 1024 // u32: how many entries follow
	statsFirstGPU    = 1032
	statsGPUSize     = 248
	statsMostGPUs    = 16
	statsShift119    = 112
	statsVersion119  = 1190
	statsKnownUpTo   = 1200 // a layout newer than we know must not be guessed at
	statsBuffer      = 16 << 10
	statsPoison      = 0xA5
	gpuReadsP2P      = 56
	gpuReadsNVFS     = 64
	gpuReadsPOSIX    = 72
	gpuReadsUnaliged = 80
)

// errStatsUnknown says that the statistics cannot be read, so that nothing can be proven by them.
var errStatsUnknown = errors.New("cuFile's statistics are not readable")

// startCounting sets the counters to zero and starts them.
func (l *cufileLib) startCounting() error {
	if l.can&CanCount == 0 {
		return fmt.Errorf("%w: %s %s has none (1.15 and later do)", errStatsUnknown, l.lib.name, l.versionText())
	}
	if err := l.call(cfSetStatsLevel, "cuFileSetStatsLevel", 3); err != nil {
		return err
	}
	if err := l.call(cfStatsReset, "cuFileStatsReset"); err != nil {
		return err
	}
	return l.call(cfStatsStart, "cuFileStatsStart")
}

// counts reads the counters of the GPU with this UUID.
func (l *cufileLib) counts(uuid [16]byte) (readCounts, error) {
	raw := make([]byte, statsBuffer)
	for i := range raw {
		raw[i] = statsPoison
	}
	if err := l.call(cfGetStatsL3, "cuFileGetStatsL3", uintptr(unsafe.Pointer(&raw[0]))); err != nil {
		return readCounts{}, err
	}
	return parseStats(raw, l.version, uuid)
}

// parseStats finds one GPU's counters in what cuFileGetStatsL3 wrote into a poisoned buffer. It fails with
// errStatsUnknown unless everything agrees: a known version, the size that it writes, the number of GPUs, the UUID.
func parseStats(raw []byte, version int, uuid [16]byte) (readCounts, error) {
	shift := 0
	switch {
	case version <= 0 || version >= statsKnownUpTo:
		return readCounts{}, fmt.Errorf("%w: version %d has a layout that is not known", errStatsUnknown, version)
	case version >= statsVersion119:
		shift = statsShift119
	}
	if len(raw) < statsLevel3Size+shift {
		return readCounts{}, fmt.Errorf("%w: %d bytes", errStatsUnknown, len(raw))
	}
	for _, b := range raw[statsLevel3Size+shift:] {
		if b != statsPoison {
			return readCounts{}, fmt.Errorf("%w: version %d wrote more than its layout holds", errStatsUnknown, version)
		}
	}
	n := binary.LittleEndian.Uint32(raw[statsGPUCount+shift:])
	if n == 0 || n > statsMostGPUs {
		return readCounts{}, fmt.Errorf("%w: they list %d GPUs", errStatsUnknown, n)
	}
	for i := range int(n) {
		gpu := raw[statsFirstGPU+shift+i*statsGPUSize:][:statsGPUSize]
		if [16]byte(gpu) != uuid {
			continue
		}
		at := func(offset int) uint64 { return binary.LittleEndian.Uint64(gpu[offset:]) }
		return readCounts{at(gpuReadsP2P), at(gpuReadsNVFS), at(gpuReadsPOSIX), at(gpuReadsUnaliged)}, nil
	}
	return readCounts{}, fmt.Errorf("%w: this GPU is not among the %d that they list", errStatsUnknown, n)
}

// Verdict is what a probe found out about a path.
type Verdict string

// The verdicts.
const (
	Proven  Verdict = "proven"  // every read went by DMA between the storage and HBM
	Refuted Verdict = "refuted" // it failed, or bytes went through host memory
	Unknown Verdict = "unknown" // nothing proves either
)

// judge says what counters mean after so many reads were issued alone in this process, aligned, compat mode off.
func judge(before, after readCounts, reads uint64) (Verdict, string) {
	if after.p2p < before.p2p || after.nvfs < before.nvfs || after.posix < before.posix || after.unaligned < before.unaligned {
		return Unknown, "a counter went backwards"
	}
	dma := after.p2p - before.p2p + after.nvfs - before.nvfs
	posix, unaligned := after.posix-before.posix, after.unaligned-before.unaligned
	switch {
	case posix > 0:
		return Refuted, fmt.Sprintf("cuFile counted %d POSIX reads with compat mode off", posix)
	case unaligned > 0:
		return Refuted, fmt.Sprintf("cuFile bounced %d reads as unaligned", unaligned)
	case dma < reads:
		return Unknown, fmt.Sprintf("cuFile counted %d DMA reads of %d issued", dma, reads)
	case after.p2p > before.p2p:
		return Proven, fmt.Sprintf("cuFile counted %d reads by PCI P2PDMA and none by POSIX", dma)
	}
	return Proven, fmt.Sprintf("cuFile counted %d reads through nvidia-fs and none by POSIX", dma)
}
