package layout

import (
	"context"
	"encoding/binary"
	"fmt"
	"sort"
)

// DocumentIndex tells where the sequences and documents of a shard's tokens begin, without holding them in memory. A
// document is one or more sequences; most formats know no sequences, and there each document is one.
//
// Implementations check their input: positions that decrease, or lie outside the shard, are an error.
type DocumentIndex interface {
	// Sequences and Documents return how many there are.
	Sequences() int64
	Documents() int64
	// Starts fills dst with the positions, in tokens from the shard's start, at which the sequences first, first+1, ...
	// begin. Sequence number Sequences() begins where the tokens end.
	Starts(ctx context.Context, dst []int64, first int64) error
	// DocumentSequences fills dst with the sequences at which the documents first, first+1, ... begin. Document number
	// Documents() begins at Sequences().
	DocumentSequences(ctx context.Context, dst []int64, first int64) error
}

// wholeDocuments gives an index without sequences the second half of [DocumentIndex].
type wholeDocuments struct{ documents int64 }

func (w wholeDocuments) Sequences() int64 { return w.documents }
func (w wholeDocuments) Documents() int64 { return w.documents }

func (w wholeDocuments) DocumentSequences(_ context.Context, dst []int64, first int64) error {
	for i := range dst {
		dst[i] = first + int64(i)
	}
	return nil
}

// regularDocuments is the index of documents of one size.
type regularDocuments struct {
	wholeDocuments
	tokens int64 // per document
}

func (r regularDocuments) Starts(_ context.Context, dst []int64, first int64) error {
	for i := range dst {
		dst[i] = (first + int64(i)) * r.tokens
	}
	return nil
}

// listedDocuments is an index held in memory: starts[i] is where document i begins, starts[len-1] the end of the tokens.
type listedDocuments struct {
	wholeDocuments
	starts []int64
}

func (l listedDocuments) Starts(_ context.Context, dst []int64, first int64) error {
	copy(dst, l.starts[first:])
	return nil
}

// endsIndex reads document ends from an object: an array of little-endian integers, each the position where a document
// ends. The first document begins at 0.
type endsIndex struct {
	wholeDocuments
	object *Object
	offset int64 // of the array in object
	width  int   // bytes of an entry: 4 or 8
	scale  int64 // an entry minus bias, divided by scale, is a position in tokens
	bias   int64
	tokens int64 // where the last document must end
}

func (x endsIndex) Starts(ctx context.Context, dst []int64, first int64) error {
	if len(dst) == 0 {
		return nil
	}
	skip := 0 // the start of document 0 is not stored
	if first == 0 {
		dst[0], skip = 0, 1
	}
	at := x.offset + (first+int64(skip)-1)*int64(x.width)
	raw, err := readFull(ctx, x.object, at, int64(len(dst)-skip)*int64(x.width))
	if err != nil {
		return err
	}
	for i := range dst[skip:] {
		p := raw[i*x.width:]
		var v uint64
		if x.width == 4 {
			v = uint64(binary.LittleEndian.Uint32(p))
		} else {
			v = binary.LittleEndian.Uint64(p)
		}
		pos := (int64(v) - x.bias) / x.scale
		k := skip + i
		if v > 1<<62 || pos < 0 || pos > x.tokens || (int64(v)-x.bias)%x.scale != 0 || (k > 0 && pos < dst[k-1]) {
			return corruptf(x.object, at+int64(i*x.width), "document %d ends at %d, which is before the document before it, between two tokens, or after the last token (%d)",
				first+int64(k)-1, v, x.tokens)
		}
		dst[k] = pos
	}
	return nil
}

// checkEnd compares the last document with the end of the tokens: one read.
func (x endsIndex) checkEnd(ctx context.Context) error {
	if x.documents == 0 {
		return nil
	}
	end := make([]int64, 1)
	if err := x.Starts(ctx, end, x.documents); err != nil {
		return err
	}
	if end[0] != x.tokens {
		return corruptf(x.object, x.offset+(x.documents-1)*int64(x.width), "the last document ends at token %d, there are %d", end[0], x.tokens)
	}
	return nil
}

// checkStarts reads all starts of an index, for the checks of its Starts.
func checkStarts(ctx context.Context, x DocumentIndex) error {
	return checkEntries(x.Sequences(), func(dst []int64, first int64) error { return x.Starts(ctx, dst, first) })
}

// checkEntries reads the entries 0 to last, 64 Ki at a time. Each read begins with the last entry of the one before, so
// that order is checked across them.
func checkEntries(last int64, read func(dst []int64, first int64) error) error {
	const atOnce = 1 << 16
	part := make([]int64, min(atOnce, last+1))
	for first := int64(0); first < last; first += atOnce - 1 {
		if err := read(part[:min(atOnce, last+1-first)], first); err != nil {
			return err
		}
	}
	return nil
}

// mergedIndex is the indexes of several shards as one, in order.
type mergedIndex struct {
	parts     []DocumentIndex
	tokens    []int64 // tokens[i] is where part i begins; one more entry for the end. The same for the next two.
	sequences []int64
	documents []int64
}

// joinIndexes makes one index of parts, which have so many tokens.
func joinIndexes(parts []DocumentIndex, tokens []int64) DocumentIndex {
	if len(parts) == 1 {
		return parts[0]
	}
	m := &mergedIndex{parts: parts, tokens: []int64{0}, sequences: []int64{0}, documents: []int64{0}}
	for i, x := range parts {
		m.tokens = append(m.tokens, m.tokens[i]+tokens[i])
		m.sequences = append(m.sequences, m.sequences[i]+x.Sequences())
		m.documents = append(m.documents, m.documents[i]+x.Documents())
	}
	return m
}

func (m *mergedIndex) Sequences() int64 { return m.sequences[len(m.parts)] }
func (m *mergedIndex) Documents() int64 { return m.documents[len(m.parts)] }

func (m *mergedIndex) Starts(ctx context.Context, dst []int64, first int64) error {
	at := func(i int) (entry, base int64) { return m.sequences[i], m.tokens[i] }
	return gather(dst, first, len(m.parts), at, func(i int, dst []int64, first int64) error {
		return m.parts[i].Starts(ctx, dst, first)
	})
}

func (m *mergedIndex) DocumentSequences(ctx context.Context, dst []int64, first int64) error {
	at := func(i int) (entry, base int64) { return m.documents[i], m.sequences[i] }
	return gather(dst, first, len(m.parts), at, func(i int, dst []int64, first int64) error {
		return m.parts[i].DocumentSequences(ctx, dst, first)
	})
}

// gather fills dst with the entries first, first+1, ... of n parts. at(i) is the first entry of part i and the base of
// its values; at(n) is the end. read reads entries of part i.
func gather(dst []int64, first int64, n int, at func(i int) (entry, base int64), read func(i int, dst []int64, first int64) error) error {
	i := sort.Search(n, func(i int) bool { next, _ := at(i + 1); return next > first })
	for ; len(dst) > 0 && i < n; i++ {
		begin, base := at(i)
		next, _ := at(i + 1)
		k := min(int64(len(dst)), next-first)
		if k == 0 {
			continue
		}
		if err := read(i, dst[:k], first-begin); err != nil {
			return err
		}
		for j := range dst[:k] {
			dst[j] += base
		}
		dst, first = dst[k:], first+k
	}
	end, base := at(n)
	if len(dst) > 1 || (len(dst) == 1 && first != end) {
		return fmt.Errorf("entry %d of an index of %d is asked for", first+int64(len(dst))-1, end)
	}
	if len(dst) == 1 {
		dst[0] = base
	}
	return nil
}

// DocumentStarts fills dst with the positions in tokens at which the documents first, first+1, ... begin.
func DocumentStarts(ctx context.Context, x DocumentIndex, dst []int64, first int64) error {
	if err := x.DocumentSequences(ctx, dst, first); err != nil || len(dst) == 0 {
		return err
	}
	lo, hi := dst[0], dst[len(dst)-1]
	if lo < 0 || hi < lo || hi > x.Sequences() {
		return fmt.Errorf("documents begin at the sequences %d to %d of %d", lo, hi, x.Sequences())
	}
	const atOnce = 1 << 16 // sequences read at a time, so that documents of many sequences cost no memory
	var starts []int64
	from := lo
	for i, seq := range dst {
		if seq < from || seq > hi {
			return fmt.Errorf("document %d begins at sequence %d, which is out of order", first+int64(i), seq)
		}
		if starts == nil || seq >= from+int64(len(starts)) {
			from = seq
			starts = make([]int64, min(atOnce, hi-from+1))
			if err := x.Starts(ctx, starts, from); err != nil {
				return err
			}
		}
		dst[i] = starts[seq-from]
	}
	return nil
}
