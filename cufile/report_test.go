package cufile

import (
	"testing"
)

func TestReasonsWithoutFigures(t *testing.T) {
	for why, want := range map[string]string{
		"asked for": "asked for",
		"in the page cache (97%) and read once; direct: no nvidia-fs":                       "in the page cache and read once",
		"in the page cache (100%) and read once by each of several readers (4); direct: no": "in the page cache and read once by each of several readers",
		"not in the page cache (1%), so it is read from the disk; direct: it is (very)":     "not in the page cache, so it is read from the disk",
		"an open ( parenthesis": "an open ( parenthesis",
		"":                      "",
	} {
		if got := kindOf(why); got != want {
			t.Errorf("%q: %q, want %q", why, got, want)
		}
	}
}

func TestTallyCountsByPathAndReason(t *testing.T) {
	var all tally
	for range 3 {
		all.add(Moved{Mapped: 10, Staged: 1}, Choice{Mapped, "in the page cache (91%) and will be read again"})
	}
	all.add(Moved{Staged: 5}, Choice{Staged, "asked for"})
	sums := map[string]int64{}
	for _, m := range all.drain() {
		sums[m.Reason] += 1000*m.Bytes + m.Reads
	}
	want := map[string]int64{"in the page cache and will be read again": 30_003, "it exists only in the mount, or its files had a choice of their own": 3_003, "asked for": 5_001}
	for reason, sum := range want {
		if sums[reason] != sum || len(sums) != len(want) {
			t.Errorf("%q: %d, want %d, of %v", reason, sums[reason], sum, sums)
		}
	}
	if len(all.drain()) != 0 {
		t.Error("the same again")
	}
}
