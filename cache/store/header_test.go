package store

import (
	"bytes"
	"reflect"
	"testing"
)

func TestHeaders(t *testing.T) {
	h := header{key: &key{1, 2}, size: 3*mib + 1, offset: 4 * mib, object: 10 * mib, source: "s3://b", name: "n", version: "v", sums: []uint32{1, 2, 3, 4}}
	good := h.append(nil)
	got, err := parseHeader(good)
	if err != nil || !reflect.DeepEqual(*got, h) {
		t.Errorf("%+v, %v; want %+v", got, err, h)
	}
	for i := range good {
		if _, err := parseHeader(good[:i]); err == nil {
			t.Errorf("a header of %d of %d bytes is taken", i, len(good))
		}
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if _, err := parseHeader(bad); err == nil {
			t.Errorf("a header with byte %d changed is taken", i)
		}
	}
	h.name = string(make([]byte, 5000))
	h.source, h.size, h.object, h.sums = h.name, MaxSegment, 1<<40, make([]uint32, mostSums)
	if n := len(h.append(nil)); n > maxHeader-512 {
		t.Errorf("the largest header has %d bytes", n)
	}
}

func TestSumBlocks(t *testing.T) {
	for size, want := range map[int64]struct {
		block int64
		sums  int
	}{0: {mib, 0}, 1: {mib, 1}, mib + 1: {mib, 2}, 256 * mib: {mib, 256}, 256*mib + 1: {2 * mib, 129}, 1 << 30: {4 * mib, 256}, MaxSegment: {64 * mib, 256}} {
		if b, n := sumBlock(size), sumsOf(size); b != want.block || n != want.sums {
			t.Errorf("%d bytes have %d sums of %d, want %d of %d", size, n, b, want.sums, want.block)
		}
	}
}

func FuzzHeader(f *testing.F) {
	h := header{key: &key{7}, size: 10, object: 10, source: "s", sums: []uint32{1}}
	f.Add(h.append(nil))
	f.Add(h.first())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeader(b)
		if err != nil {
			return
		}
		again := (*header).first
		if h.key != nil {
			again = func(h *header) []byte { return h.append(nil) }
		} else {
			h.key = &key{} // first leaves it out
		}
		if !bytes.Equal(again(h), b) {
			t.Errorf("%x is taken for %+v", b, h)
		}
	})
}
