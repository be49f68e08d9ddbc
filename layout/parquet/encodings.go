package parquet

import (
	"encoding/binary"
	"fmt"
)

// maxDeltas bounds the values of a page in this encoding, which can make much of nothing.
const maxDeltas = 1 << 25

var errDelta = fmt.Errorf("%w: the delta encoding of a page", ErrBroken)

// deltas decodes up to n integers of DELTA_BINARY_PACKED, and returns the rest.
func deltas(body []byte, n int64) ([]int64, []byte, error) {
	next := func() uint64 {
		v, k := binary.Uvarint(body)
		if k <= 0 {
			body = nil
			return 0
		}
		body = body[k:]
		return v
	}
	zigzag := func() int64 { v := next(); return int64(v>>1) ^ -int64(v&1) }
	if len(body) == 0 {
		return []int64{}, nil, errDelta
	}
	block, minis, total := next(), next(), next()
	value := zigzag()
	if total > maxDeltas {
		return nil, nil, fmt.Errorf("%w: a page has %d values, at most %d are read: write it with smaller pages", ErrUnread, total, maxDeltas)
	}
	if body == nil || minis == 0 || minis > 1<<10 || block%minis != 0 || block/minis%32 != 0 || block > 1<<16 || block == 0 || total > uint64(n) {
		return nil, nil, errDelta
	}
	out := make([]int64, 0, min(total, 1<<16))
	if total > 0 {
		out = append(out, value)
	}
	for uint64(len(out)) < total {
		least := zigzag()
		if uint64(len(body)) < minis {
			return nil, nil, errDelta
		}
		widths := body[:minis]
		body = body[minis:]
		for _, w := range widths {
			if uint64(len(out)) >= total {
				break // writers leave out bit widths that are not needed
			}
			size := int(block / minis * uint64(w) / 8)
			if w > 64 || size > len(body) {
				return nil, nil, errDelta
			}
			packed := body[:size]
			body = body[size:]
			for i := uint64(0); i < block/minis && uint64(len(out)) < total; i++ {
				value += least + int64(unpack(packed, i*uint64(w), uint(w)))
				out = append(out, value)
			}
		}
	}
	return out, body, nil
}

// unpack returns w bits from bit at on.
func unpack(packed []byte, at uint64, w uint) uint64 {
	if w <= 56 && at/8+8 <= uint64(len(packed)) {
		return binary.LittleEndian.Uint64(packed[at/8:]) >> (at % 8) & (1<<w - 1)
	}
	v := uint64(0)
	for i := uint(0); i < w; {
		b := uint64(packed[(at+uint64(i))/8]) >> ((at + uint64(i)) % 8)
		v |= b << i
		i += 8 - uint((at+uint64(i))%8)
	}
	if w < 64 {
		v &= 1<<w - 1
	}
	return v
}

// hybrid decodes the encoding of levels and indices: runs, and groups of eight that are packed.
type hybrid struct {
	src    []byte
	width  int
	run    uint64 // values that are left of a run
	value  uint32
	packed []byte // or of a pack
	at     uint64 // bits of it
	left   uint64
}

// newHybrid gives zeros for ever where width is 0.
func newHybrid(src []byte, width int) *hybrid { return &hybrid{src: src, width: width} }

func (h *hybrid) next() (uint32, bool) {
	if h.width == 0 {
		return 0, true
	}
	for h.run == 0 && h.left == 0 {
		if !h.begin() {
			return 0, false
		}
	}
	if h.run > 0 {
		h.run--
		return h.value, true
	}
	h.left--
	v := unpack(h.packed, h.at, uint(h.width))
	h.at += uint64(h.width)
	return uint32(v), true
}

// fill decodes as many values as dst has, or as there are.
func (h *hybrid) fill(dst []uint32) (n int) {
	if h.width == 0 {
		clear(dst)
		return len(dst)
	}
	for n < len(dst) {
		if h.run == 0 && h.left == 0 && !h.begin() {
			return n
		}
		if h.run > 0 {
			some := dst[n : n+int(min(h.run, uint64(len(dst)-n)))]
			for i := range some {
				some[i] = h.value
			}
			h.run -= uint64(len(some))
			n += len(some)
			continue
		}
		some := dst[n : n+int(min(h.left, uint64(len(dst)-n)))]
		for i := range some {
			some[i] = uint32(unpack(h.packed, h.at, uint(h.width)))
			h.at += uint64(h.width)
		}
		h.left -= uint64(len(some))
		n += len(some)
	}
	return n
}

// begin reads the head of a run or pack.
func (h *hybrid) begin() bool {
	head, n := binary.Uvarint(h.src)
	if n <= 0 {
		return false
	}
	h.src = h.src[n:]
	if head&1 == 0 {
		size := (h.width + 7) / 8
		if len(h.src) < size {
			return false
		}
		h.value = 0
		for i := range size {
			h.value |= uint32(h.src[i]) << (8 * i)
		}
		h.src, h.run = h.src[size:], head>>1
		return true
	}
	size := head >> 1 * uint64(h.width)
	if head>>1 > uint64(len(h.src)) || size > uint64(len(h.src)) {
		// A last pack may be cut short: its values that are there count.
		if head>>1 > 1<<32 {
			return false
		}
		size = uint64(len(h.src))
	}
	h.packed, h.src, h.at = h.src[:size], h.src[size:], 0
	h.left = min(head>>1*8, size*8/uint64(h.width))
	return h.left > 0
}
