package direct

import (
	"testing"

	"github.com/hbmfs/hbmfs/internal/driver"
)

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		before, after driver.ReadCounts
		reads         uint64
		want          Verdict
	}{
		{driver.ReadCounts{}, driver.ReadCounts{P2P: 8}, 8, Proven},
		{driver.ReadCounts{NVFS: 5}, driver.ReadCounts{NVFS: 13}, 8, Proven},
		{driver.ReadCounts{}, driver.ReadCounts{P2P: 4, NVFS: 4}, 8, Proven},
		{driver.ReadCounts{}, driver.ReadCounts{NVFS: 16}, 8, Proven}, // cuFile may split a read
		{driver.ReadCounts{}, driver.ReadCounts{NVFS: 7}, 8, Unknown},
		{driver.ReadCounts{}, driver.ReadCounts{}, 8, Unknown},
		{driver.ReadCounts{NVFS: 9}, driver.ReadCounts{NVFS: 8}, 0, Unknown},
		{driver.ReadCounts{}, driver.ReadCounts{NVFS: 8, POSIX: 1}, 8, Refuted},
		{driver.ReadCounts{}, driver.ReadCounts{NVFS: 8, Unaligned: 1}, 8, Refuted},
	} {
		if got, why := Judge(c.before, c.after, c.reads); got != c.want || why == "" {
			t.Errorf("%+v to %+v in %d reads: %s (%s), want %s", c.before, c.after, c.reads, got, why, c.want)
		}
	}
}
