package layout

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"
)

// fieldPieces puts together the values of one field in one shard: a piece of the object for each sample. Equal pieces a
// stride apart become one run, and equal lengths one entry of the index.
type fieldPieces struct {
	object *Object
	item   int64         // bytes of an element
	left   *atomic.Int64 // how many more runs the set may take, which bounds its memory
	what   string        // that lies in the pieces, for errors

	data  Body
	index lengthIndex
	run   Run   // the last one, which may grow
	taken int64 // of left
}

// add takes the value of the next sample.
func (p *fieldPieces) add(offset, length int64) error {
	p.index.add(length/p.item, 1)
	r := &p.run
	switch {
	case length == 0:
		return nil
	case r.Count > 0 && length == r.Length && (r.Count == 1 && offset >= r.Offset+length || offset == r.Offset+r.Count*r.Stride):
		if r.Count == 1 {
			r.Stride = offset - r.Offset
		}
		r.Count++
		return nil
	}
	if err := p.flush(); err != nil {
		return err
	}
	p.run = Run{Offset: offset, Length: length, Stride: length, Count: 1}
	return nil
}

// addEmpty takes values of no bytes.
func (p *fieldPieces) addEmpty(samples int64) { p.index.add(0, samples) }

func (p *fieldPieces) flush() error {
	r := p.run
	if r.Count == 0 {
		return nil
	}
	p.taken++
	if p.left.Add(-1) < 0 {
		p.giveBack()
		return absent("%s of the set lie in more than %d separate pieces: repack it to read it as one stream", p.what, maxPieces)
	}
	p.data.AddStrided(p.object, r.Offset, r.Length, r.Stride, r.Count)
	p.run = Run{}
	return nil
}

// giveBack leaves the runs to others: these are not kept.
func (p *fieldPieces) giveBack() {
	p.left.Add(p.taken)
	p.taken = 0
}

// newPieces returns the count that the shards of a set share.
func newPieces() *atomic.Int64 {
	n := new(atomic.Int64)
	n.Store(maxPieces)
	return n
}

// maxPieces bounds the runs of all tokens, and of all fields, of one set.
const maxPieces = maxRuns

// lengthIndex is an index of documents, or of values of a field, by their lengths in elements. Equal ones in a row take one
// entry of two or three bytes.
type lengthIndex struct {
	wholeDocuments
	elements int64
	packed   []byte       // of each entry the length, times 2, plus 1 where a count follows
	marks    []lengthMark // of every lengthsApart-th entry
	entries  int
	length   int64 // of the last entry, which may grow
	count    int64
}

type lengthMark struct {
	document, element int64 // where the entry begins
	at                int   // in packed
}

const lengthsApart = 64

func (l *lengthIndex) add(length, count int64) {
	if count == 0 {
		return
	}
	if l.count == 0 || length != l.length {
		l.flush()
		l.length = length
	}
	l.count += count
	l.documents += count
	l.elements += length * count
}

func (l *lengthIndex) flush() {
	if l.count == 0 {
		return
	}
	if l.entries%lengthsApart == 0 {
		l.marks = append(l.marks, lengthMark{l.documents - l.count, l.elements - l.count*l.length, len(l.packed)})
	}
	l.entries++
	if l.count == 1 {
		l.packed = binary.AppendUvarint(l.packed, uint64(l.length)<<1)
	} else {
		l.packed = binary.AppendUvarint(l.packed, uint64(l.length)<<1|1)
		l.packed = binary.AppendUvarint(l.packed, uint64(l.count))
	}
	l.count = 0
}

// done returns the smallest index that says the same. No more is added then.
func (l *lengthIndex) done() DocumentIndex {
	if l.entries == 0 {
		return regularDocuments{wholeDocuments{l.documents}, l.length}
	}
	l.flush()
	l.packed, l.marks = slices.Clip(l.packed), slices.Clip(l.marks)
	return l
}

func (l *lengthIndex) Starts(_ context.Context, dst []int64, first int64) error {
	if len(dst) == 0 {
		return nil
	}
	if last := first + int64(len(dst)) - 1; first < 0 || last > l.documents {
		return fmt.Errorf("document %d of %d is asked for", last, l.documents)
	}
	m := l.marks[max(0, sort.Search(len(l.marks), func(i int) bool { return l.marks[i].document > first })-1)]
	for document, element, at := m.document, m.element, m.at; len(dst) > 0; {
		length, count := int64(0), int64(1) // behind the last entry
		if at < len(l.packed) {
			v, n := binary.Uvarint(l.packed[at:])
			at += n
			length = int64(v >> 1)
			if v&1 != 0 {
				v, n = binary.Uvarint(l.packed[at:])
				at += n
				count = int64(v)
			}
		}
		for ; first < document+count && len(dst) > 0; first++ {
			dst[0] = element + (first-document)*length
			dst = dst[1:]
		}
		document, element = document+count, element+count*length
	}
	return nil
}
