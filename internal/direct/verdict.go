package direct

import (
	"fmt"

	"github.com/hbmfs/hbmfs/internal/driver"
)

// Verdict is a probe's finding about a path.
type Verdict string

// The verdicts.
const (
	Proven  Verdict = "proven"  // every read went by DMA between the storage and HBM
	Refuted Verdict = "refuted" // it failed, or bytes went through host memory
	Unknown Verdict = "unknown" // nothing proves either
)

// Judge interprets counters after so many reads were issued alone in this process, aligned, with compat mode off.
func Judge(before, after driver.ReadCounts, reads uint64) (Verdict, string) {
	if after.P2P < before.P2P || after.NVFS < before.NVFS || after.POSIX < before.POSIX || after.Unaligned < before.Unaligned {
		return Unknown, "a counter went backwards"
	}
	dma := after.P2P - before.P2P + after.NVFS - before.NVFS
	posix, unaligned := after.POSIX-before.POSIX, after.Unaligned-before.Unaligned
	switch {
	case posix > 0:
		return Refuted, fmt.Sprintf("cuFile counted %d POSIX reads with compat mode off", posix)
	case unaligned > 0:
		return Refuted, fmt.Sprintf("cuFile bounced %d reads as unaligned", unaligned)
	case dma < reads:
		return Unknown, fmt.Sprintf("cuFile counted %d DMA reads of %d issued", dma, reads)
	case after.P2P > before.P2P:
		return Proven, fmt.Sprintf("cuFile counted %d reads by PCI P2PDMA and none by POSIX", dma)
	}
	return Proven, fmt.Sprintf("cuFile counted %d reads through nvidia-fs and none by POSIX", dma)
}
