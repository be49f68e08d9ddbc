package direct

import (
	"fmt"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Verdict is a probe's finding about a path.
type Verdict string

// The verdicts.
const (
	Proven  Verdict = "proven"  // every read, or write, went by DMA between the storage and HBM
	Refuted Verdict = "refuted" // it failed, or bytes went through host memory
	Unknown Verdict = "unknown" // nothing proves either
)

// Judge interprets counters after so many reads, or writes, were issued alone in this process, aligned, with compat mode off.
// The text `what` names the moves.
func Judge(before, after driver.WayCounts, moves uint64, what string) (Verdict, string) {
	if after.P2P < before.P2P || after.NVFS < before.NVFS || after.POSIX < before.POSIX || after.Unaligned < before.Unaligned {
		return Unknown, "a counter went backwards"
	}
	dma := after.P2P - before.P2P + after.NVFS - before.NVFS
	posix, unaligned := after.POSIX-before.POSIX, after.Unaligned-before.Unaligned
	switch {
	case posix > 0:
		return Refuted, fmt.Sprintf("cuFile counted %d POSIX %s with compat mode off", posix, what)
	case unaligned > 0:
		return Refuted, fmt.Sprintf("cuFile bounced %d %s as unaligned", unaligned, what)
	case dma < moves:
		return Unknown, fmt.Sprintf("cuFile counted %d DMA %s of %d issued", dma, what, moves)
	case after.P2P > before.P2P:
		return Proven, fmt.Sprintf("cuFile counted %d %s by PCI P2PDMA and none by POSIX", dma, what)
	}
	return Proven, fmt.Sprintf("cuFile counted %d %s through nvidia-fs and none by POSIX", dma, what)
}
