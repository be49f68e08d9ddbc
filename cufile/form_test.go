package cufile

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
)

// formOf gives the form of a widening; of none that of elements of so many bytes.
func formOf(t *testing.T, kind Widen, element int64) crew.Form {
	t.Helper()
	form, err := kind.form()
	must(t, err)
	if form == nil {
		return crew.Form{From: element, Size: element}
	}
	return *form
}

// widenedByHand widens little-endian elements one by one.
func widenedByHand(data []byte, form crew.Form) []byte {
	var out []byte
	for ; len(data) > 0; data = data[form.From:] {
		var eight [8]byte
		copy(eight[:], data[:form.From])
		if form.Signed && data[form.From-1] >= 0x80 {
			for i := form.From; i < 8; i++ {
				eight[i] = 0xff
			}
		}
		out = binary.NativeEndian.AppendUint64(out, binary.LittleEndian.Uint64(eight[:]))[:int64(len(out))+form.Size]
	}
	return out
}

// rowsInForm is a batch of rows, and what both of its outputs must be.
func rowsInForm(random *rand.Rand, files []*File, datas [][]byte, rows, length int64, form crew.Form, targets bool) (b *Batch, first, second []byte) {
	b = &Batch{Files: files, Begins: make([]int64, len(files)), Element: form.From, Length: length}
	for k := range files {
		b.Begins[k] = random.Int64N(17) // so that elements lie at any byte, and some in two windows
	}
	for range rows {
		k := random.IntN(len(files))
		start := random.Int64N((int64(len(datas[k]))-b.Begins[k])/form.From - length + 1)
		b.Sources, b.Starts = append(b.Sources, int32(k)), append(b.Starts, start)
		row := widenedByHand(datas[k][b.Begins[k]+start*form.From:][:length*form.From], form)
		if !targets {
			first = append(first, row...)
			continue
		}
		first, second = append(first, row[:int64(len(row))-form.Size]...), append(second, row[form.Size:]...)
	}
	return b, first, second
}

// TestRowsOfEveryForm compares rows of two files, by every widening and without one, with targets and without: of elements at any byte, some of which
// lie in two windows, and of rows that end anywhere.
func TestRowsOfEveryForm(t *testing.T) {
	trials := 2
	if os.Getenv("HBMFS_TEST_LONG") != "" {
		trials = 4
	}
	everyPath(t, func(t *testing.T, o Options) {
		o.Reuse = true
		o.Window, o.Pinned = 64<<10, 4<<20 // many borders, and all may be registered
		r := newReader(t, o)
		var files []*File
		var datas [][]byte
		for i := range 2 {
			name, data := randomFile(t, 400_000+i, uint64(70+i))
			files, datas = append(files, openFileIn(t, r, name)), append(datas, data)
		}
		random := rand.New(rand.NewPCG(70, 1))
		for kind := WidenNone; kind <= WidenI32ToI64; kind++ {
			for _, element := range []int64{1, 2, 4, 8} {
				form := formOf(t, kind, element)
				if kind != WidenNone && form.From != element {
					continue
				}
				for trial := range trials { // the first ones are registered meanwhile
					for _, targets := range []bool{false, true} {
						rows, length := 1+random.Int64N(60), 1+random.Int64N(1200)
						b, first, second := rowsInForm(random, files, datas, rows, length, form, targets)
						m, beside := newMemory(t, r, max(int64(len(first)), 8), 0), newMemory(t, r, max(int64(len(second)), 8), 0)
						to := Target{Memory: m.Memory, Widen: kind}
						if targets {
							to.Targets = beside.Memory
						}
						must(t, brought(t, to, b))
						m.holds(t, first, isFake(o))
						beside.holds(t, second, isFake(o))
						if t.Failed() {
							t.Fatalf("widening %d of %d bytes, trial %d, %d rows of %d, targets %v", kind, element, trial, rows, length, targets)
						}
					}
				}
			}
		}
	})
}

// TestFormsOfRegisteredRows brings rows of a form by one launch, once their windows are registered: as many as without a form.
func TestFormsOfRegisteredRows(t *testing.T) {
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse, o.Pinned = true, 4<<20
	r := newReader(t, o)
	name, data := randomFile(t, 1<<20, 71)
	files, datas := []*File{openFileIn(t, r, name)}, [][]byte{data}
	random := rand.New(rand.NewPCG(71, 1))
	form := formOf(t, WidenU16ToI64, 2)
	for trial := range 8 {
		b, _, _ := rowsInForm(random, files, datas, 100, 500, form, true)
		b.Begins[0] = 0 // no element lies in two windows
		var first, second []byte
		for _, start := range b.Starts {
			row := widenedByHand(data[2*start:][:1000], form)
			first, second = append(first, row[:len(row)-8]...), append(second, row[8:]...)
		}
		m, beside := newMemory(t, r, int64(len(first)), 0), newMemory(t, r, int64(len(second)), 0)
		before := ask(t, o.Libraries.CUDA, "fake_cuda_launches")
		q, err := BeginBatch(t.Context(), Target{Memory: m.Memory, Targets: beside.Memory, Widen: WidenU16ToI64}, b, nil)
		must(t, err)
		result, err := q.Result()
		must(t, err)
		m.holds(t, first, true)
		beside.holds(t, second, true)
		launches := ask(t, o.Libraries.CUDA, "fake_cuda_launches") - before
		if trial > 4 && (launches != 1 || result.Choice.Why != seenWhy) {
			t.Errorf("trial %d: %d launches; %+v", trial, launches, result)
		}
	}
}

// TestFormsThatCannotBe are refused before anything is written.
func TestFormsThatCannotBe(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, _ := randomFile(t, 10_000, 72)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		m, beside := newMemory(t, r, 800, 0), newMemory(t, r, 800, 0)
		short := Memory{Pointer: beside.Pointer, Length: 799}
		odd := Memory{Pointer: beside.Pointer + 1, Length: 700}
		for what, c := range map[string]struct {
			to     Target
			change func(b *Batch)
		}{
			"another element":         {Target{Memory: m.Memory, Widen: WidenU32ToI64}, func(*Batch) {}},
			"an unknown widening":     {Target{Memory: m.Memory, Widen: -1}, func(*Batch) {}},
			"too few for widened":     {Target{Memory: Memory{Pointer: m.Pointer, Length: 8*101 - 1}, Widen: WidenU16ToI64}, func(*Batch) {}},
			"too few targets":         {Target{Memory: m.Memory, Targets: short, Widen: WidenU16ToI64}, func(*Batch) {}},
			"targets of spans":        {Target{Memory: m.Memory, Targets: beside.Memory}, func(b *Batch) { b.Lengths = []int64{101} }},
			"targets at places":       {Target{Memory: m.Memory, Targets: beside.Memory}, func(b *Batch) { b.Places = []int64{0} }},
			"targets of odd elements": {Target{Memory: m.Memory, Targets: beside.Memory}, func(b *Batch) { b.Element = 3 }},
			"targets of no elements":  {Target{Memory: m.Memory, Targets: beside.Memory}, func(b *Batch) { b.Length = 0 }},
			"unaligned targets":       {Target{Memory: m.Memory, Targets: odd}, func(b *Batch) { b.Length = 50 }},
			"targets at no address":   {Target{Memory: m.Memory, Targets: Memory{Pointer: 8, Length: 800}}, func(*Batch) {}},
		} {
			b := Batch{Files: []*File{f}, Element: 2, Starts: []int64{7}, Length: 101}
			c.change(&b)
			if err := brought(t, c.to, &b); !errors.Is(err, ErrMemory) {
				t.Errorf("%s: %v, want ErrMemory", what, err)
			}
		}
		m.holds(t, nil, isFake(o))
		beside.holds(t, nil, isFake(o))
		must(t, brought(t, Target{Memory: m.Memory, Targets: beside.Memory, Widen: WidenU16ToI64}, &Batch{Files: []*File{f}, Element: 2, Starts: []int64{7}, Length: 101}))
	})
}

// TestTargetsOfAFileThatIsCut says so, as without targets.
func TestTargetsOfAFileThatIsCut(t *testing.T) {
	name, _ := randomFile(t, 1<<20, 73)
	r := newReader(t, smallOptions(fakeLibraries(t), Mapped))
	f, err := r.Open(t.Context(), name)
	must(t, err)
	m, beside := newMemory(t, r, 20*100*8, 0), newMemory(t, r, 20*100*8, 0)
	random := rand.New(rand.NewPCG(73, 1))
	bring := func() error {
		b := Batch{Files: []*File{f}, Element: 2, Length: 101}
		for range 20 {
			b.Starts = append(b.Starts, random.Int64N(1<<18))
		}
		return brought(t, Target{Memory: m.Memory, Targets: beside.Memory, Widen: WidenU16ToI64}, &b)
	}
	for range 3 {
		must(t, bring())
	}
	must(t, os.Truncate(name, 1<<20-1))
	until(t, "a batch says that the file was cut", func() bool { err = bring(); return err != nil })
	if !errors.Is(err, ErrShort) {
		t.Errorf("%v, want ErrShort", err)
	}
	must(t, f.Close())
}
