package cufile

import (
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/tally"
)

func TestTallyCountsByPathAndReason(t *testing.T) {
	var all tally.Tally
	for range 3 {
		Moved{Mapped: 10, Staged: 1}.tell(&all, Choice{Mapped, "in the page cache (91%) and will be read again"})
	}
	Moved{Staged: 5}.tell(&all, Choice{Staged, "asked for"})
	sums := map[string]int64{}
	for _, m := range all.Rest() {
		sums[m.Reason] += 1000*m.Bytes + m.Reads
	}
	want := map[string]int64{"in the page cache and will be read again": 30_003, "it exists only in the mount, or its files had a choice of their own": 3_003, "asked for": 5_001}
	for reason, sum := range want {
		if sums[reason] != sum || len(sums) != len(want) {
			t.Errorf("%q: %d, want %d, of %v", reason, sums[reason], sum, sums)
		}
	}
	if len(all.Rest()) != 0 {
		t.Error("the same again")
	}
}

func TestTallyNamesTheField(t *testing.T) {
	for file, want := range map[string]string{
		"/mnt/.hbmfs/views/fields/jpg.values.npy": "jpg",
		"/mnt/.hbmfs/views/a/fields/latent.npy":   "latent",
		"fields/%2Ea.seg.values.npy":              "%2Ea.seg",
		"/mnt/.hbmfs/views/fields/fields.json":    "",
		"/mnt/.hbmfs/views/tensors/latent.npy":    "",
		"/mnt/.hbmfs/views/tokens.npy":            "",
		"/mnt/fields":                             "",
	} {
		all := tally.Tally{Field: tally.FieldOf(file)}
		Moved{Host: 10}.tell(&all, Choice{Host, "asked for"})
		if due := all.Due(); len(due) != 1 || due[0].Field != want || due[0].Bytes != 10 {
			t.Errorf("%s: %+v, want field %q", file, due, want)
		}
	}
}
