package direct

import (
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		before, after driver.WayCounts
		reads         uint64
		want          Verdict
	}{
		{driver.WayCounts{}, driver.WayCounts{P2P: 8}, 8, Proven},
		{driver.WayCounts{NVFS: 5}, driver.WayCounts{NVFS: 13}, 8, Proven},
		{driver.WayCounts{}, driver.WayCounts{P2P: 4, NVFS: 4}, 8, Proven},
		{driver.WayCounts{}, driver.WayCounts{NVFS: 16}, 8, Proven}, // cuFile may split a read
		{driver.WayCounts{}, driver.WayCounts{NVFS: 7}, 8, Unknown},
		{driver.WayCounts{}, driver.WayCounts{}, 8, Unknown},
		{driver.WayCounts{NVFS: 9}, driver.WayCounts{NVFS: 8}, 0, Unknown},
		{driver.WayCounts{}, driver.WayCounts{NVFS: 8, POSIX: 1}, 8, Refuted},
		{driver.WayCounts{}, driver.WayCounts{NVFS: 8, Unaligned: 1}, 8, Refuted},
	} {
		if got, why := Judge(c.before, c.after, c.reads, "reads"); got != c.want || why == "" {
			t.Errorf("%+v to %+v in %d reads: %s (%s), want %s", c.before, c.after, c.reads, got, why, c.want)
		}
	}
}
