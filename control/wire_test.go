package control

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"
)

// codec is a message of the protocol: reencode parses it and writes what was understood.
type codec struct {
	name     string
	sample   []byte
	reencode func(p []byte) ([]byte, error)
}

// of makes the codec of a message that has a parser and a method to append itself.
func of[T any, P interface {
	*T
	AppendTo([]byte) []byte
}](name string, sample P, parse func([]byte) (T, error)) codec {
	return codec{name, sample.AppendTo(nil), func(p []byte) ([]byte, error) {
		m, err := parse(p)
		if err != nil {
			return nil, err
		}
		return P(&m).AppendTo(nil), nil
	}}
}

// ofList makes the codec of a message that is one list.
func ofList[T any](name string, sample []T, add func([]byte, []T) []byte, parse func([]byte) ([]T, error)) codec {
	return codec{name, add(nil, sample), func(p []byte) ([]byte, error) {
		m, err := parse(p)
		if err != nil {
			return nil, err
		}
		return add(nil, m), nil
	}}
}

func codecs() []codec {
	extents := []Extent{{0, 128, 0, 0, 128, 1, ExtentMount}, {128, 512, 1024, 7, 600, 9, 0}}
	objects := []Object{{7, 1 << 40, 2, 3, -1, 0, 0}, {8, 0, 0, 0, 0, syscall.ESTALE, -1}}
	touches := Touches{[]Touched{{"a/b", `"v"`, 100}, {"c", "", 5}}, []Touch{{1, Range{0, 5}}, {0, Range{64, 36}}}}
	addNames := func(b []byte, n []Named) []byte { b, _ = AppendNames(b, n); return b }
	return []codec{
		of("info", &FileInfo{InfoMount | InfoBypass, 1 << 40, 3, 2, -1, 128, 5, 77, Epoch{1}}, ParseFileInfo),
		of("extents in", &ExtentsRequest{ExtentsTicket, 10, 1 << 62, 11}, ParseExtentsRequest),
		of("extents out", &Batch{ExtentsLast, 1, 2, 3, Ticket{4}, Epoch{5}, 2, extents}, ParseBatch),
		ofList("prefetch in", []Range{{0, 1}, {5, 1 << 62}}, AppendPrefetch, ParsePrefetch),
		{"draft ioctl in", AppendDraftRequest(nil, DraftStart), func(p []byte) ([]byte, error) {
			verb, err := ParseDraftRequest(p)
			return AppendDraftRequest(nil, verb), err
		}},
		of("draft ioctl out", &DraftReply{DraftFailed, 16, 1 << 30, 1 << 40, "file \"a\" is still open"}, ParseDraftReply),
		of("hello", &Hello{1, 3, 4, "reader 7"}, ParseHello),
		of("welcome", &Welcome{1, WelcomeReadOnly, Epoch{9}, 100, 1024}, ParseWelcome),
		of("redeem", &Redeem{Ticket{1}, []uint64{1, 2, 3}}, ParseRedeem),
		ofList("release", []uint64{5}, AppendRelease, ParseRelease),
		ofList("fds", objects, AppendFDs, ParseFDs),
		of("ack", &Ack{1, 2}, ParseAck),
		of("lookup", &Lookup{LookupFDs, []string{"a", "b/c", ""}}, ParseLookup),
		of("files", &Files{[]File{{Size: 5, Tokens: -1, First: 1, Extents: 1}, {Errno: syscall.ENOENT}}, extents, objects}, ParseFiles),
		ofList("names", []Named{{1, "a/b"}, {2, ""}}, addNames, ParseNames),
		ofList("stats", []PathReport{{PathHost, "asked for", 1 << 40, 3, "jpg"}, {PathDirect, "", 0, 0, ""}, {PathMapped, "", 1, 1, "latent"}}, AppendStats, ParseStats),
		of("count", &ReaderCount{7}, ParseCount),
		ofList("object ranges", []ObjectRange{{7, Range{1, 2}}}, AppendObjectRanges, ParseObjectRanges),
		of("begin", &Begin{DraftID{1}, 1, 2, 0o22, BeginAttach, "step-7", []NewFile{{"a", 5}, {"sub/b", 1 << 40}}}, ParseBegin),
		of("add", &AddFiles{DraftID{1}, []NewFile{{"c", 0}}}, ParseAddFiles),
		of("draft", &DraftFiles{DraftID{1}, 3, 2}, ParseDraftFiles),
		of("seal", &Seal{DraftID{1}, 3, 16000, []uint32{1, 2, 3}}, ParseSeal),
		of("publish", &PublishDraft{DraftID{1}, 3, 1 << 40}, ParsePublishDraft),
		of("drop", &DropDraft{DraftID{1}}, ParseDropDraft),
		of("ask record", &AskRecord{RecordOwn, 7}, ParseAskRecord),
		of("record part", &RecordPart{time.Unix(5, 6), 3, 9, true, touches}, ParseRecordPart),
		of("bring", &Bring{true, touches}, ParseBring),
		of("brought", &Brought{9, 5, 4, 1 << 40, []syscall.Errno{0, syscall.ESTALE}}, ParseBrought),
		of("ask changes", &AskChanges{true, 7}, ParseAskChanges),
		of("changes", &Changes{9, true, 2, []Change{{7, ChangeCut, 5, "a/b"}, {8, ChangeRemoved, 0, ""}}}, ParseChanges),
		of("kv open", &KVOpen{2 << 20, 0o640, KVCreate | KVWrite, "llama"}, ParseKVOpen),
		of("kv space", &KVSpace{1, 0o640, 2, 3, 4096, []KVTier{{KVMemory, 0, 1 << 30, 1 << 26, 5, 0}, {KVDisk, 1, 1 << 40, 1 << 30, 0, KVDirect}}}, ParseKVSpace),
		of("kv keys", &KVKeys{1, KVPin, [][]byte{{0}, []byte("key")}}, ParseKVKeys),
		of("kv reserve", &KVReserve{1, []KVBlock{{[]byte("key"), 7}, {[]byte{0}, 0}}}, ParseKVReserve),
		ofList("kv slots", []KVSlot{{0, 1, 1 << 40, 5, 6, KVHasCRC, 1 << 63}, {Errno: syscall.ENOENT}}, AppendKVSlots, ParseKVSlots),
		of("kv commit", &KVCommit{1, []KVStored{{1 << 63, 2, KVHasCRC}, {3, 0, 0}}}, ParseKVCommit),
		of("kv release", &KVRelease{1, KVSuspect, []uint64{1, 2}}, ParseKVRelease),
		ofList("kv done", []KVDone{{0, KVHeld}, {syscall.ENOENT, 0}}, AppendKVDone, ParseKVDone),
		of("kv stat", &KVStat{1}, ParseKVStat),
		of("kv counts", &KVCounts{1, 2, 3, 4, 5, 6, 7, 8, KVTierCounts{9, 10, 11, 12, 13, 14, 15, 16}, KVTierCounts{Faults: 17}}, ParseKVCounts),
		of("kv attach", &KVAttach{1, 1 << 63}, ParseKVAttach),
		of("kv verify", &KVVerify{1, 2}, ParseKVVerify),
		of("kv verified", &KVVerified{1, 2, 3, 4, 5, 6, 7}, ParseKVVerified),
		of("error", &Refusal{syscall.EAGAIN, "no"}, ParseRefusal),
		{"frame", AppendFrame(nil, Header{1, TypeAck, 9}, (&Ack{1, 2}).AppendTo), func(p []byte) ([]byte, error) {
			h, payload, err := ParseFrame(p)
			return AppendFrame(nil, h, func(b []byte) []byte { return append(b, payload...) }), err
		}},
	}
}

func TestMessagesSurviveTheWire(t *testing.T) {
	for _, c := range codecs() {
		got, err := c.reencode(c.sample)
		if err != nil || !bytes.Equal(got, c.sample) {
			t.Errorf("%s: %x came back as %x, %v", c.name, c.sample, got, err)
		}
		for n := range c.sample {
			if _, err := c.reencode(c.sample[:n]); err == nil {
				t.Errorf("%s: %d of its %d bytes are taken for the whole", c.name, n, len(c.sample))
			}
		}
	}
}

// FuzzMessages feeds any bytes to any parser. What is taken for a message must be written back as the same bytes: so
// nothing is read past the end, ignored, or read in two ways. Ioctls may have room behind what they say.
func FuzzMessages(f *testing.F) {
	all := codecs()
	for i, c := range all {
		f.Add(uint8(i), c.sample)
	}
	f.Fuzz(func(t *testing.T, which uint8, p []byte) {
		c := all[int(which)%len(all)]
		got, err := c.reencode(p)
		if err != nil {
			return
		}
		room := c.name == "extents in" || c.name == "extents out" // what follows is room for extents
		if !bytes.Equal(got, p) && (!room || !bytes.HasPrefix(p, got)) {
			t.Errorf("%s: %x came back as %x", c.name, p, got)
		}
	})
}

// FuzzExtentArithmetic checks that an extent that is accepted can be computed with.
func FuzzExtentArithmetic(f *testing.F) {
	f.Add(int64(0), int64(1), int64(0), int64(1), int64(1))
	f.Add(int64(1), int64(math.MaxInt64), int64(0), int64(math.MaxInt64), int64(2))
	f.Fuzz(func(t *testing.T, logical, length, offset, stride, count int64) {
		e := Extent{logical, length, offset, 1, stride, count, 0}
		r := reader{rest: e.AppendTo(nil)}
		e = r.extent()
		if r.bad {
			return
		}
		last := e.Offset + (e.Count-1)*e.Stride
		if e.End() <= e.Logical || last < e.Offset || last+e.Length <= last || (e.Count > 1 && (last-e.Offset)/(e.Count-1) != e.Stride) {
			t.Errorf("%+v overflows", e)
		}
	})
}

func TestHostileMessagesAreRefused(t *testing.T) {
	huge := func(p []byte, at int) []byte {
		p = bytes.Clone(p)
		binary.LittleEndian.PutUint32(p[at:], math.MaxUint32)
		return p
	}
	byName := map[string]codec{}
	for _, c := range codecs() {
		byName[c.name] = c
	}
	for what, c := range map[string]struct {
		codec string
		p     []byte
	}{
		"count of release":       {"release", huge(byName["release"].sample, 0)},
		"count of redeem":        {"redeem", huge(byName["redeem"].sample, 16)},
		"count of lookup":        {"lookup", huge(byName["lookup"].sample, 0)},
		"length of a path":       {"lookup", huge(byName["lookup"].sample, 8)},
		"unknown flags":          {"lookup", huge(byName["lookup"].sample, 4)},
		"count of files":         {"files", huge(byName["files"].sample, 0)},
		"count of extents":       {"extents out", huge(byName["extents out"].sample, 32)},
		"count of stats":         {"stats", huge(byName["stats"].sample, 0)},
		"an unknown path":        {"stats", huge(byName["stats"].sample, 8)},
		"length of a reason":     {"stats", huge(byName["stats"].sample, 12)},
		"a long reason":          {"stats", AppendStats(nil, []PathReport{{PathHost, strings.Repeat("x", ReasonSize+1), 1, 1, ""}})},
		"an escape in a reason":  {"stats", AppendStats(nil, []PathReport{{PathHost, "a\x1bb", 1, 1, ""}})},
		"a long field":           {"stats", AppendStats(nil, []PathReport{{PathHost, "", 1, 1, strings.Repeat("x", FieldSize+1)}})},
		"an escape in a field":   {"stats", AppendStats(nil, []PathReport{{PathHost, "", 1, 1, "a\x1bb"}})},
		"65 reasons":             {"stats", AppendStats(nil, make([]PathReport, MaxMoved+1))},
		"length of a frame":      {"frame", huge(byName["frame"].sample, 12)},
		"65 objects":             {"redeem", (&Redeem{Objects: make([]uint64, 65)}).AppendTo(nil)},
		"1,025 paths":            {"lookup", (&Lookup{Paths: make([]string, 1025)}).AppendTo(nil)},
		"bytes that overflow":    {"stats", AppendStats(nil, []PathReport{{PathHost, "", maxMoved + 1, 0, ""}})},
		"a name with a newline":  {"hello", (&Hello{Name: "a\nb"}).AppendTo(nil)},
		"a cursor out of range":  {"extents in", (&ExtentsRequest{0, 10, 5, 16}).AppendTo(nil)},
		"LAST as a request":      {"extents in", (&ExtentsRequest{ExtentsLast, 0, 5, 0}).AppendTo(nil)},
		"files of begin":         {"begin", huge(byName["begin"].sample, 32)},
		"name of begin":          {"begin", huge(byName["begin"].sample, 36)},
		"65 files":               {"add", (&AddFiles{Files: make([]NewFile, 65)}).AppendTo(nil)},
		"a size of 2^63":         {"add", (&AddFiles{Files: []NewFile{{"a", math.MinInt64}}}).AppendTo(nil)},
		"a long file name":       {"add", (&AddFiles{Files: []NewFile{{strings.Repeat("a", 4097), 1}}}).AppendTo(nil)},
		"a umask of all bits":    {"begin", (&Begin{Umask: math.MaxUint32}).AppendTo(nil)},
		"flags of begin":         {"begin", huge(byName["begin"].sample, 28)},
		"sums of seal":           {"seal", huge(byName["seal"].sample, 20)},
		"the last chunk":         {"seal", (&Seal{First: math.MaxUint64}).AppendTo(nil)},
		"bytes below 0":          {"publish", (&PublishDraft{Bytes: -1}).AppendTo(nil)},
		"keys of kv":             {"kv keys", huge(byName["kv keys"].sample, 8)},
		"length of a key":        {"kv keys", huge(byName["kv keys"].sample, 16)},
		"an empty key":           {"kv keys", (&KVKeys{Keys: [][]byte{{}}}).AppendTo(nil)},
		"a key of 65 bytes":      {"kv reserve", (&KVReserve{Blocks: []KVBlock{{make([]byte, 65), 1}}}).AppendTo(nil)},
		"a huge block":           {"kv reserve", (&KVReserve{Blocks: []KVBlock{{[]byte("a"), MaxKVBlock + 1}}}).AppendTo(nil)},
		"1,025 keys":             {"kv release", (&KVRelease{Tokens: make([]uint64, 1025)}).AppendTo(nil)},
		"a huge block size":      {"kv open", (&KVOpen{BlockBytes: MaxKVBlock + 1}).AppendTo(nil)},
		"a long namespace":       {"kv open", (&KVOpen{Name: strings.Repeat("a", MaxKVName+1)}).AppendTo(nil)},
		"a mode of all bits":     {"kv open", (&KVOpen{Mode: 0o1000}).AppendTo(nil)},
		"a tier beyond two":      {"kv slots", AppendKVSlots(nil, []KVSlot{{Tier: 2}})},
		"a descriptor of none":   {"kv space", (&KVSpace{Tiers: []KVTier{{KVDisk, 1, 1, 1, 0, 0}}}).AppendTo(nil)},
		"a flag of a tier":       {"kv space", (&KVSpace{Tiers: []KVTier{{KVDisk, 0, 1, 1, 0, 2}}}).AppendTo(nil)},
		"a block beyond a slot":  {"kv space", (&KVSpace{BlockBytes: 2, SlotBytes: 1}).AppendTo(nil)},
		"tokens of commit":       {"kv commit", huge(byName["kv commit"].sample, 8)},
		"a descriptor beyond 64": {"fds", AppendFDs(nil, []Object{{FD: 64}})},
	} {
		if _, err := byName[c.codec].reencode(c.p); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}

func TestCommands(t *testing.T) {
	for _, c := range []struct {
		command uint32
		op      Op
		n       int
	}{
		{InfoCommand, OpInfo, 0}, {ExtentsCommand(0), OpExtents, 0}, {ExtentsCommand(MaxExtents), OpExtents, MaxExtents},
		{PrefetchCommand(1), OpPrefetch, 1}, {PrefetchCommand(MaxRanges), OpPrefetch, MaxRanges},
	} {
		if op, n, ok := ParseCommand(c.command); op != c.op || n != c.n || !ok {
			t.Errorf("%#x is %#x with %d, %v", c.command, op, n, ok)
		}
	}
	for _, c := range []uint32{0, 0x5401, InfoCommand + 1<<16, InfoCommand &^ iocRead, ExtentsCommand(1) + 1<<16, ExtentsCommand(1) ^ 0x100, PrefetchCommand(2) | iocRead, 96<<16 - 56<<16 | ExtentsCommand(0)&0xc000ffff} {
		if _, _, ok := ParseCommand(c); ok {
			t.Errorf("%#x is taken for ours", c)
		}
	}
	if size := ExtentsHeaderSize + MaxExtents*ExtentSize; size > maxIoctl || size+ExtentSize <= maxIoctl {
		t.Errorf("%d extents are %d bytes", MaxExtents, size)
	}
}

func TestABatchNamesEachObjectOnce(t *testing.T) {
	b := Batch{Extents: []Extent{{Object: 3}, {Object: 0}, {Object: 1}, {Object: 3}}}
	if got := b.Objects(); len(got) != 2 || got[0] != 3 || got[1] != 1 {
		t.Errorf("%v, want [3 1]", got)
	}
}

func TestNamesStopWhereTheFrameIsFull(t *testing.T) {
	long := strings.Repeat("x", MaxPayload/2)
	p, n := AppendNames(nil, []Named{{1, long}, {2, long}})
	if n != 1 || len(p) > MaxPayload {
		t.Errorf("%d names in %d bytes", n, len(p))
	}
	if names, err := ParseNames(p); err != nil || len(names) != 1 || names[0].Name != long {
		t.Errorf("%d names, %v", len(names), err)
	}
}

func TestFilesKnowTheirRoom(t *testing.T) {
	var m Files
	for m.Room(2, 1) {
		m.Files, m.Extents, m.Objects = append(m.Files, File{}), append(m.Extents, Extent{}, Extent{}), append(m.Objects, Object{})
	}
	if n := len(m.AppendTo(nil)); n > MaxPayload || n+fileSize+2*ExtentSize+objectSize <= MaxPayload {
		t.Errorf("%d files are %d bytes", len(m.Files), n)
	}
}
