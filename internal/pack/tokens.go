package pack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/hbmfs/hbmfs/layout"
)

// tokenSet is a set of a dataset, or one shard of it, to pack again.
type tokenSet struct {
	source string
	set    *layout.Set
	shards []*layout.Shard
}

// tokenSource yields the documents of token sets.
type tokenSource struct {
	sets []tokenSet
	end  int64 // the token that ends a document where a set does not record them, -1 for none
	buf  []byte
	ids  []uint32
	read int64 // bytes
	open bool  // the current document has tokens
}

func newTokenInput(sets []tokenSet, o *Options) (*input, error) {
	end, err := o.documentEnd()
	if err != nil {
		return nil, err
	}
	s := &tokenSource{sets: sets, end: end}
	in := &input{source: s, tokens: true}
	for _, t := range sets {
		v, err := vocabularyOf(t.set.DType)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.source, err)
		}
		in.vocabulary = max(in.vocabulary, v)
		for _, h := range t.shards {
			in.total += h.Objects[0].Size
		}
	}
	return in, nil
}

// vocabularyOf returns a bound for tokens of type d. Real vocabularies stay below 2^31, which every wide format holds;
// a token that does not is refused when it is written.
func vocabularyOf(d layout.DType) (int64, error) {
	switch d {
	case layout.U8, layout.I8, layout.U16, layout.I16:
		return math.MaxUint16 + 1, nil
	case layout.U32, layout.I32, layout.U64, layout.I64:
		return math.MaxInt32 + 1, nil
	}
	return 0, fmt.Errorf("elements of type %s are not tokens", d)
}

// Documents implements [Source].
func (s *tokenSource) Documents(ctx context.Context, yield func(Document, int64) error) error {
	for _, t := range s.sets {
		if err := t.set.Resolve(ctx); err != nil {
			return fmt.Errorf("read %s: %w", t.source, err)
		}
		for i, h := range t.shards {
			if h.Bad != "" {
				return fmt.Errorf("read %s: shard %s is bad: %s", t.source, h.Name, h.Bad)
			}
			var err error
			if h.Index != nil {
				err = s.indexed(ctx, t.set.DType, h, yield)
			} else {
				// A document may span the shards of such a set, so only the last shard's end is an end.
				err = s.run(ctx, t.set.DType, h, 0, h.Tokens, i < len(t.shards)-1, s.end, yield)
			}
			if err != nil {
				return fmt.Errorf("read %s, shard %s: %w", t.source, h.Name, err)
			}
		}
	}
	return nil
}

// indexed yields a shard's documents by its index.
func (s *tokenSource) indexed(ctx context.Context, d layout.DType, h *layout.Shard, yield func(Document, int64) error) error {
	const atOnce = 1 << 12
	n := h.Index.Documents()
	for first := int64(0); first < n; first += atOnce {
		starts := make([]int64, min(atOnce, n-first)+1)
		if err := layout.DocumentStarts(ctx, h.Index, starts, first); err != nil {
			return err
		}
		for i, from := range starts[:len(starts)-1] {
			to := starts[i+1]
			if from < 0 || to < from || to > h.Tokens {
				return fmt.Errorf("document %d has the tokens %d to %d of %d", first+int64(i), from, to, h.Tokens)
			}
			if err := s.run(ctx, d, h, from, to, false, -1, yield); err != nil {
				return err
			}
		}
	}
	return nil
}

// run yields the tokens [from, to) of a shard as one document, or as several that end with the token end. more says
// that the last one goes on.
func (s *tokenSource) run(ctx context.Context, d layout.DType, h *layout.Shard, from, to int64, more bool, end int64,
	yield func(Document, int64) error,
) error {
	const atOnce = 1 << 16 // tokens
	width := int64(d.Size())
	for at := from; ; {
		n := min(atOnce, to-at)
		s.buf = slices.Grow(s.buf[:0], int(n*width))[:n*width]
		if m, err := h.Data.ReadAt(ctx, s.buf, at*width); int64(m) < n*width {
			if err == nil || errors.Is(err, io.EOF) {
				err = layout.ErrShort
			}
			return fmt.Errorf("read tokens %d to %d: %w", at, at+n, err)
		}
		var err error
		if s.ids, err = decodeTokens(s.ids[:0], d, s.buf); err != nil {
			return fmt.Errorf("tokens %d to %d: %w", at, at+n, err)
		}
		at += n
		s.read += n * width
		ids := s.ids
		for end >= 0 {
			i := slices.Index(ids, uint32(end))
			if i < 0 {
				break
			}
			if err := yield(Document{Tokens: ids[:i+1]}, s.read); err != nil {
				return err
			}
			ids, s.open = ids[i+1:], false
		}
		last := at >= to
		if end >= 0 && last && len(ids) == 0 && !s.open {
			return nil // the last document has ended with its token, there is no empty one after it
		}
		s.open = (s.open || len(ids) > 0) && (!last || more)
		if err := yield(Document{Tokens: ids, More: !last || more}, s.read); err != nil || last {
			return err
		}
	}
}

// decodeTokens appends the little-endian elements of raw to dst.
func decodeTokens(dst []uint32, d layout.DType, raw []byte) ([]uint32, error) {
	width := d.Size()
	for ; len(raw) >= width; raw = raw[width:] {
		var v int64
		switch d {
		case layout.U8:
			v = int64(raw[0])
		case layout.I8:
			v = int64(int8(raw[0]))
		case layout.U16:
			v = int64(binary.LittleEndian.Uint16(raw))
		case layout.I16:
			v = int64(int16(binary.LittleEndian.Uint16(raw)))
		case layout.U32:
			v = int64(binary.LittleEndian.Uint32(raw))
		case layout.I32:
			v = int64(int32(binary.LittleEndian.Uint32(raw)))
		default:
			v = int64(binary.LittleEndian.Uint64(raw))
		}
		if v < 0 || v > math.MaxUint32 {
			return dst, fmt.Errorf("%d is no token: %w", v, errNarrow)
		}
		dst = append(dst, uint32(v))
	}
	return dst, nil
}
