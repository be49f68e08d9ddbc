package control

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTheHeaderForC compiles hbmfs.h and compares what C writes with what Go writes.
func TestTheHeaderForC(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler")
	}
	var want []byte
	want = put32(want, InfoCommand, ExtentsCommand(0), ExtentsCommand(MaxExtents), PrefetchCommand(MaxRanges))
	want = (&FileInfo{InfoMount | InfoBypass, 2, 3, 4, -1, 6, 7, 8, Epoch{9}}).AppendTo(want)
	want = (&Batch{ExtentsLast, 2, 3, 4, Ticket{5}, Epoch{6}, 7, []Extent{{1, 2, 3, 4, 5, 6, ExtentMount}}}).AppendTo(want)
	want = AppendPrefetch(want, []Range{{2, 3}})
	want = AppendFrame(want, Header{1, TypeDrop, 2}, nil)
	want = (&Hello{1, 2, 3, "name"}).AppendTo(want)
	want = (&Welcome{1, WelcomeDrafts, Epoch{2}, 3, 4}).AppendTo(want)
	want = (&Redeem{Ticket{1}, nil}).AppendTo(want)
	want = AppendFDs(want, []Object{{1, 2, 3, 4, -5, 6, -1}})
	want = (&Ack{1, 2}).AppendTo(want)
	want = (&Lookup{LookupFDs, nil}).AppendTo(want)
	want = (&Files{Files: []File{{1, 2, -1, 4, 5, 6, InfoMore, 8, 9, 0, 0}}}).AppendTo(want)
	want, _ = AppendNames(want, []Named{{1, ""}})
	want = AppendStats(want, []PathReport{{PathHost, "", 5, 6, ""}})
	want = (&ReaderCount{7}).AppendTo(want)
	want = AppendObjectRanges(want, []ObjectRange{{1, Range{2, 3}}})
	want = (&Begin{ID: DraftID{1}, Part: 2, Parts: 3, Umask: 4, Flags: BeginAttach}).AppendTo(want)
	want = (&AddFiles{ID: DraftID{1}}).AppendTo(want)
	want = (&DraftFiles{DraftID{1}, 2, 3}).AppendTo(want)
	want = (&Seal{ID: DraftID{1}, File: 2, First: 3}).AppendTo(want)
	want = (&PublishDraft{DraftID{1}, 2, 3}).AppendTo(want)
	want = (&DropDraft{DraftID{1}}).AppendTo(want)
	want = AppendFrame(want, Header{1, TypeKVVerified, 2}, nil)
	want = (&KVOpen{1, 2, KVCreate | KVWrite, ""}).AppendTo(want)
	want = (&KVSpace{1, 2, 3, 4, 5, []KVTier{{KVDisk, 0, 2, 3, 4, KVDirect}}}).AppendTo(want)
	want = (&KVKeys{1, KVPin, nil}).AppendTo(want)
	want = (&KVReserve{1, nil}).AppendTo(want)
	want = AppendKVSlots(want, []KVSlot{{1, 1, 3, 4, 5, KVHasCRC, 7}})
	want = (&KVCommit{1, []KVStored{{2, 3, KVHasCRC}}}).AppendTo(want)
	want = (&KVRelease{1, KVSuspect, []uint64{2}}).AppendTo(want)
	want = AppendKVDone(want, []KVDone{{1, KVHeld}})
	want = (&KVStat{1}).AppendTo(want)
	want = (&KVCounts{1, 2, 3, 4, 5, 6, 7, 8, KVTierCounts{1, 2, 3, 4, 5, 6, 7, 8}, KVTierCounts{1, 2, 3, 4, 5, 6, 7, 8}}).AppendTo(want)
	want = (&KVAttach{1, 2}).AppendTo(want)
	want = (&KVVerify{1, 2}).AppendTo(want)
	want = (&KVVerified{1, 2, 3, 4, 5, 6, 7}).AppendTo(want)
	want = (&AskChanges{true, 2}).AppendTo(want)
	want = (&Changes{1, true, 3, []Change{{4, ChangeReplaced, 5, ""}}}).AppendTo(want)
	want = (&Refusal{11, ""}).AppendTo(want)

	program := filepath.Join(t.TempDir(), "wire")
	for _, standard := range []string{"c11", "c17"} {
		out, err := exec.Command(cc, "-std="+standard, "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/wire.c").CombinedOutput()
		if err != nil {
			t.Fatalf("compile: %v\n%s", err, out)
		}
		got, err := exec.Command(program).Output()
		if err != nil || !bytes.Equal(got, want) {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Errorf("%s: C writes %d bytes, Go %d, the same up to %d (%v)", standard, len(got), len(want), at, err)
		}
	}
}
