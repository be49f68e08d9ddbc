package decode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// golden is a file that the zstd command has written; testdata/zstd/make.sh says how.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	p, err := os.ReadFile(filepath.Join("testdata", "zstd", name+".zst"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// numbers is what the golden files decode to.
func numbers() []byte {
	var b bytes.Buffer
	for i := 1; i <= 300; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.Bytes()
}

// skippable is a frame that decodes to nothing.
func skippable(id byte, payload string) []byte {
	p := binary.LittleEndian.AppendUint32([]byte{0x50 | id, 0x2a, 0x4d, 0x18}, uint32(len(payload)))
	return append(p, payload...)
}

// rawFrame is a frame that says its size, in blocks that are not compressed.
func rawFrame(data []byte) []byte {
	p := binary.LittleEndian.AppendUint64([]byte{0x28, 0xb5, 0x2f, 0xfd, 3 << 6, 10 << 3}, uint64(len(data))) // a window of 1 MiB
	for {
		n := min(len(data), blockSize)
		last := 0
		if n == len(data) {
			last = 1
		}
		head := n<<3 | last
		p = append(append(p, byte(head), byte(head>>8), byte(head>>16)), data[:n]...)
		if data = data[n:]; last == 1 {
			return p
		}
	}
}

// tabled is a frame with a seek table that has it alone.
func tabled(coded, data []byte) []byte {
	le := binary.LittleEndian
	p := le.AppendUint32(bytes.Clone(coded), seekSkippable)
	p = le.AppendUint32(le.AppendUint32(le.AppendUint32(p, 8+seekFooter), uint32(len(coded))), uint32(len(data)))
	return le.AppendUint32(append(le.AppendUint32(p, 1), 0), seekMagic)
}

func with(p []byte, at int, b byte) []byte {
	p = bytes.Clone(p)
	p[at] = b
	return p
}

// TestOddFiles shows every legal file as what zstd itself decodes it to, and says of the others what is wrong.
func TestOddFiles(t *testing.T) {
	data := numbers()
	named, piped, unsummed, pzstd := golden(t, "named"), golden(t, "piped"), golden(t, "unsummed"), golden(t, "pzstd")
	empty, emptyPiped := golden(t, "empty"), golden(t, "empty-piped")
	skip, skipNothing := skippable(3, "whatever it may be"), skippable(15, "")
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	stored := map[string][]byte{}
	want := map[string][]byte{}
	for name, coded := range map[string][][]byte{ // 0: stored, then what it decodes to
		"named": {named, data}, "piped": {piped, data}, "unsummed": {unsummed, data}, "pzstd": {pzstd, data}, "window": {golden(t, "window-128M"), data},
		"empty": {empty}, "empty-piped": {emptyPiped}, "skip": {skip}, "skips": {join(skip, skipNothing, skip)},
		"two": {join(named, named), data, data}, "three": {join(unsummed, named, unsummed), data, data, data},
		"said-unsaid": {join(named, piped), data, data}, "unsaid-said": {join(piped, named), data, data}, "pzstd-twice": {join(pzstd, pzstd), data, data},
		"empties":    {join(empty, emptyPiped, named, empty, emptyPiped), data},
		"skip-first": {join(skip, named), data}, "skip-middle": {join(named, skip, named), data, data}, "skip-last": {join(named, skip), data},
		"skips-unsaid": {join(skipNothing, piped, skip, piped, skipNothing), data, data},
		"table":        {seekable(t, data, 100), data}, "tables": {join(seekable(t, data, 100), summed(t, data, 300)), data, data},
		"table-more": {join(seekable(t, data, 100), named), data, data}, "skip-table": {join(skip, seekable(t, data, 100)), data},
		"many": {bytes.Repeat(named, 2000), bytes.Repeat(data, 2000)}, "raw": {rawFrame(plain(3 << 20)), plain(3 << 20)},
		"table-of-nothing": {tabled(named, nil), data}, "wide-table": {tabled(golden(t, "window-128M"), data), data},
	} {
		stored[name+".zst"], want[name] = coded[0], join(coded[1:]...)
	}
	why := map[string]string{}
	for name, c := range map[string]struct {
		coded []byte
		says  string
	}{
		"nothing": {nil, "it is empty"}, "text": {data, "does not begin as zstd"}, "short": {named[:3], "cut short"},
		"dictionary": {golden(t, "dictionary"), "needs a dictionary"}, "dictionary-later": {join(named, golden(t, "dictionary")), "needs a dictionary"},
		"dictionary-unsaid": {join(piped, golden(t, "dictionary")), "needs a dictionary"},
		"window-large":      {golden(t, "window-2G"), "more than 128 MiB of memory"}, "window-later": {join(named, golden(t, "window-2G")), "more than 128 MiB of memory"},
		"window-table": {tabled(golden(t, "window-2G"), data), "more than 128 MiB of memory"}, "dictionary-table": {tabled(golden(t, "dictionary"), data), "needs a dictionary"},
		"window-unsaid": {join(piped, golden(t, "window-2G")), "more than 128 MiB of memory"},
		"cut":           {named[:len(named)/2], "cut short"}, "cut-checksum": {named[:len(named)-1], "cut short"}, "cut-block": {unsummed[:len(unsummed)-1], "cut short"},
		"cut-piped": {piped[:len(piped)-1], "cut short"}, "cut-second": {join(named, named[:100]), "cut short"}, "cut-skip": {join(named, skip[:10]), "cut short"},
		"cut-header": {join(named, named[:5]), "cut short"}, "cut-magic": {join(named, named[:2]), "cut short"},
		"garbage": {join(named, []byte("some garbage")), fmt.Sprintf("at byte %d, is no zstd", len(named))}, "zeros": {join(named, make([]byte, 512)), "is no zstd"},
		"garbage-piped": {join(piped, []byte("some garbage")), "is no zstd"}, "flipped-piped": {flipped(piped, 200), "cannot be decoded"},
		"old":      {join([]byte{0x27, 0xb5, 0x2f, 0xfd}, named[4:]), "does not begin as zstd"},
		"reserved": {with(named, 4, 0x6c), "does not know"}, "a-block": {with(unsummed, 7, 0x87), "a block that zstd does not know"},
		"huge": {[]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0}, "which cannot be"},
		"much": {join([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 1}, unsummed[7:]), "which cannot be"},
	} {
		stored[name+".zst"], why[name+".zst"] = c.coded, c.says
	}
	w, l := addFiles(t, &files{data: stored})
	for name, data := range want {
		if w.objects[name] == nil {
			t.Errorf("%s is not shown", name)
			continue
		}
		if got, err := w.read(t, name); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, want %d: %v", name, len(got), len(data), err)
		}
	}
	for _, p := range l.Problems {
		if says, ok := why[p.Object]; !ok || !strings.Contains(p.Detail, says) {
			t.Errorf("%s: %q, want %q", p.Object, p.Detail, says)
		}
		delete(why, p.Object)
	}
	for name := range why {
		t.Errorf("%s is no problem", name)
	}
}

// sparse is a file of the given bytes, which counts what is read of it.
type sparse struct {
	data  []byte
	reads atomic.Int64
	bytes atomic.Int64
}

func (s *sparse) ReadAt(_ context.Context, _ *layout.Object, p []byte, off int64) (int, error) {
	n, err := bytes.NewReader(s.data).ReadAt(p, off)
	s.reads.Add(1)
	s.bytes.Add(int64(n))
	return n, err
}

// TestLearning has files that are too large to be read for nothing: what is read of each is bounded, and remembered.
func TestLearning(t *testing.T) {
	big := rawFrame(plain(5 << 20))
	for name, c := range map[string]struct {
		coded    []byte
		scan     int64
		size     int64 // 0: refused
		guess    bool
		most     int64 // bytes that are read
		mostTime int64 // requests
	}{
		"one":                {big, 0, 5 << 20, true, stepAway + seekFooter, 2},
		"two":                {bytes.Repeat(big, 2), 0, 10 << 20, false, 11 << 20, 9},
		"two, nearly alike":  {append(bytes.Clone(big), rawFrame(plain(4<<20))...), 0, 9 << 20, false, 10 << 20, 9},
		"a small one more":   {append(bytes.Clone(big), golden(t, "named")...), 0, 5 << 20, true, stepAway + seekFooter, 2}, // wrong
		"two, little scan":   {bytes.Repeat(big, 2), 1 << 20, 0, false, 2 << 20, 3},
		"small, then one":    {append(golden(t, "named"), big...), 0, 5<<20 + 1092, false, 6 << 20, 6},
		"unsaid":             {append(golden(t, "piped"), big...), 0, 5<<20 + 1092, false, 6 << 20, 8},
		"unsaid, little":     {append(golden(t, "piped"), big...), 1 << 20, 0, false, stepAway + seekFooter, 2},
		"a gap to pass over": {bytes.Join([][]byte{golden(t, "named"), skippable(0, string(make([]byte, 6<<20))), golden(t, "named")}, nil), 0, 2 * 1092, false, 1 << 20, 3},
	} {
		t.Run(name, func(t *testing.T) {
			from := &sparse{data: c.coded}
			o := &layout.Object{Name: "f.zst", Size: int64(len(c.coded)), Version: "1", Origin: from}
			l := cache.RemoteListing([]*layout.Object{o})
			opt := FileOptions{Scan: c.scan, Sizes: filepath.Join(t.TempDir(), "sizes", "one.json")}
			learned := addTo(t, l, opt)
			if from.bytes.Load() > c.most || from.reads.Load() > c.mostTime {
				t.Errorf("%d bytes were read in %d requests, want at most %d in %d", from.bytes.Load(), from.reads.Load(), c.most, c.mostTime)
			}
			if c.size == 0 {
				if len(l.Problems) != 1 || !strings.Contains(l.Problems[0].Detail, "mount with a larger --decode-scan") {
					t.Errorf("problems %v", l.Problems)
				}
				return
			}
			if len(l.Problems) > 0 || l.Objects[0].Size != c.size {
				t.Fatalf("it is shown with %d bytes, want %d; problems %v", l.Objects[0].Size, c.size, l.Problems)
			}
			if (learned.Files == 0) != c.guess {
				t.Errorf("learned %+v", learned)
			}
			from.bytes.Store(0)
			l = cache.RemoteListing([]*layout.Object{o})
			if again := addTo(t, l, opt); l.Objects[0].Size != c.size || again.Files > 0 || (!c.guess && from.bytes.Load() > 0) {
				t.Errorf("again: %d bytes, %+v, %d bytes were read", l.Objects[0].Size, again, from.bytes.Load())
			}
			o.Version = "2"
			l = cache.RemoteListing([]*layout.Object{o})
			if again := addTo(t, l, opt); l.Objects[0].Size != c.size || again.Files != learned.Files {
				t.Errorf("another version: %d bytes, %+v", l.Objects[0].Size, again)
			}
		})
	}
}

// addTo decodes a listing's files and remembers what was learned.
func addTo(t *testing.T, l *cache.Listing, opt FileOptions) Learned {
	t.Helper()
	x, err := Wrap(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	learned, err := x.AddFiles(t.Context(), l, opt)
	if err == nil {
		err = x.SaveSizes()
	}
	if err != nil {
		t.Fatal(err)
	}
	return learned
}

// TestWrongGuess trusts a first frame that is not alone. Reading says so, and the next mount knows.
func TestWrongGuess(t *testing.T) {
	one := plain(5 << 20)
	want := append(bytes.Clone(one), numbers()...)
	for name, last := range map[string]string{"said": "named", "unsaid": "piped"} {
		t.Run(name, func(t *testing.T) {
			from := &sparse{data: append(rawFrame(one), golden(t, last)...)}
			o := &layout.Object{Name: "f.zst", Size: int64(len(from.data)), Version: "1", Origin: from}
			opt := FileOptions{Sizes: filepath.Join(t.TempDir(), "one.json")}
			l := cache.RemoteListing([]*layout.Object{o})
			addTo(t, l, opt)
			for range 2 {
				p := make([]byte, len(want))
				n, err := l.Objects[0].ReadAt(t.Context(), p, 0)
				if n > 0 || !errors.Is(err, cache.ErrDamaged) || !strings.Contains(err.Error(), fmt.Sprintf("decodes to %d bytes and is shown with %d", len(want), len(one))) {
					t.Errorf("%d bytes, %v", n, err)
				}
			}
			l = cache.RemoteListing([]*layout.Object{o})
			addTo(t, l, opt)
			p := make([]byte, len(want))
			if n, err := l.Objects[0].ReadAt(t.Context(), p, 0); l.Objects[0].Size != int64(len(want)) || n < len(p) || !bytes.Equal(p, want) {
				t.Errorf("the next mount shows %d bytes, and reads %d: %v", l.Objects[0].Size, n, err)
			}
		})
	}
}

// TestLearnHere walks through a file of a directory page by page.
func TestLearnHere(t *testing.T) {
	dir := t.TempDir()
	coded := bytes.Repeat(rawFrame(plain(3<<20)), 3)
	if err := os.WriteFile(filepath.Join(dir, "f.zst"), coded, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := cache.OpenDir(dir, 4)
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sizes := filepath.Join(t.TempDir(), "one.json")
	learned := addTo(t, l, FileOptions{Sizes: sizes})
	if len(l.Problems) > 0 || l.Objects[0].Size != 9<<20 || learned.Files != 1 || learned.Bytes > 80*stepHere {
		t.Errorf("%d bytes, %+v, problems %v", l.Objects[0].Size, learned, l.Problems)
	}
	for name, spoil := range map[string]func(string) error{
		"no JSON":         func(name string) error { return os.WriteFile(name, []byte("{"), 0o600) },
		"another version": func(name string) error { return os.WriteFile(name, []byte(`{"version":2}`), 0o600) },
		"no file":         os.Remove,
		"a directory":     func(name string) error { return errors.Join(os.RemoveAll(name), os.Mkdir(name, 0o700)) },
	} {
		if err := spoil(sizes); err != nil {
			t.Fatal(err)
		}
		if l, err = d.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		x, err := Wrap(t.Context(), l)
		if err == nil {
			learned, err = x.AddFiles(t.Context(), l, FileOptions{Sizes: sizes})
		}
		if err != nil || l.Objects[0].Size != 9<<20 || learned.Files != 1 {
			t.Errorf("%s: %v, %+v", name, err, learned)
		}
		if err := x.SaveSizes(); (err != nil) != (name == "a directory") {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.RemoveAll(sizes); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(sizes, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(sizes), ".new-*")); err != nil || len(left) > 0 {
		t.Errorf("%q is left: %v", left, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// FuzzWalk walks through any bytes, page by page and all at once, and decodes them: all agree on what they decode to.
func FuzzWalk(f *testing.F) {
	for _, name := range []string{"named", "unsummed", "piped", "pzstd", "empty", "empty-piped", "dictionary", "window-2G"} {
		p := golden(f, name)
		f.Add(p)
		f.Add(p[:len(p)-1])
		f.Add(append(skippable(1, "x"), append(p, p...)...))
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<20))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(d.Close)
	f.Fuzz(func(t *testing.T, coded []byte) {
		o := layout.Bytes("f.zst", coded)
		small, large := &walk{zip: o, step: headSize, may: math.MaxInt64}, &walk{zip: o, step: stepFar, may: math.MaxInt64}
		errSmall, errLarge := small.run(t.Context()), large.run(t.Context())
		if !errors.Is(errSmall, errLarge) || small.size != large.size || small.frames != large.frames {
			t.Errorf("%d bytes in %d frames, %v; and %d in %d, %v", small.size, small.frames, errSmall, large.size, large.frames, errLarge)
		}
		out, err := d.DecodeAll(coded, nil)
		var u unfit
		switch {
		case err != nil: // what the headers say may be right all the same
		case errLarge == nil && small.size != int64(len(out)):
			t.Errorf("it decodes to %d bytes, the walk says %d", len(out), small.size)
		case errors.As(errLarge, &u) && u != cutShort:
			t.Errorf("it decodes to %d bytes, the walk says that %s", len(out), u)
		}
	})
}
