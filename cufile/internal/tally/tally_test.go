package tally

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hbmfs/hbmfs/control"
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

// TestDueOnceASecond: each byte is reported once, and the daemon is not told more often.
func TestDueOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all Tally
		due := func(want int64) {
			t.Helper()
			sum := int64(0)
			for _, m := range all.Due() {
				sum += m.Bytes
			}
			if sum != want {
				t.Errorf("%d bytes are due, want %d", sum, want)
			}
		}
		all.Add(control.PathHost, "asked for", 1)
		due(1)
		all.Add(control.PathHost, "asked for", 2)
		due(0)
		all.Add(control.PathHost, "asked for", 4)
		time.Sleep(every)
		due(6)
		all.Add(control.PathHost, "asked for", 8)
		if rest := all.Rest(); len(rest) != 1 || rest[0] != (control.PathReport{Path: control.PathHost, Reason: "asked for", Bytes: 8, Reads: 1}) {
			t.Errorf("the rest is %v", rest)
		}
		var readers Readers
		if n := readers.Count(context.Background(), nil); n != 0 {
			t.Errorf("nobody counted %d readers", n)
		}
	})
}
