package layout

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

// A safetensors file is a u64 header length, a JSON object of that many bytes, and the tensors' bytes:
//
//	{"__metadata__": {string: string}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//
// begin and end count from the end of the header. The tensors cover everything behind it, without holes or overlap.
// Source: huggingface/safetensors, safetensors/src/tensor.rs.
const (
	safetensorsMaxHeader = 100_000_000 // MAX_HEADER_SIZE there
	// maxTensors bounds the memory of one file's tensors. The largest checkpoints have about 100,000 in all.
	maxTensors = 1 << 20
)

// tensor is a header's entry for one tensor.
type tensor struct {
	name       string
	dtype      string // as the header spells it
	shape      []int64
	begin, end int64 // in the file, bytes
	at         int64 // behind the header's words about it, bytes in the file
}

// safetensorsType returns the bits of an element and the type that hbmfs knows it by, DTypeUnknown where it has none.
// known is false for a name that is not in the format's source.
func safetensorsType(name string) (width int64, d DType, known bool) {
	switch name {
	case "F4":
		return 4, DTypeUnknown, true
	case "F6_E2M3", "F6_E3M2":
		return 6, DTypeUnknown, true
	case "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ":
		return 8, DTypeUnknown, true
	case "C64":
		return 64, DTypeUnknown, true
	}
	d, err := ParseDType(strings.ToLower(name)) // the other types have our names in upper case
	if err != nil || name != strings.ToUpper(name) {
		return 0, DTypeUnknown, false
	}
	return int64(8 * d.Size()), d, true
}

// product returns the product of first and the dimensions, each taken as least where it is less. ok is false when it does
// not fit an int64.
func product(first int64, shape []int64, least int64) (n int64, ok bool) {
	n, ok = first, true
	for i := 0; ok && i < len(shape); i++ {
		n, ok = multiply(n, max(shape[i], least))
	}
	return n, ok
}

// multiply returns a*b of two numbers that are not negative. ok is false when it does not fit an int64.
func multiply(a, b int64) (product int64, ok bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= math.MaxInt64
}

// safetensorsRead reads and checks a file's header. The tensors come in the order of their bytes.
func safetensorsRead(ctx context.Context, budget headerBudget, o *Object) ([]tensor, error) {
	first, err := readFull(ctx, o, 0, 8)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(first)
	if bad := safetensorsLength(o, n); bad != "" {
		return nil, corruptf(o, 0, "%s", bad)
	}
	giveBack, err := budget.take(ctx, int64(n))
	if err != nil {
		return nil, err
	}
	defer giveBack()
	header, err := readFull(ctx, o, 8, int64(n))
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(header) {
		return nil, corruptf(o, 8, "the header is not UTF-8")
	}
	p := newObjectParser(o, 8, bytes.NewReader(header))
	var tensors []tensor
	err = p.object(func(name string) error {
		if name == "__metadata__" {
			var metadata map[string]string
			return p.value(&metadata)
		}
		if len(tensors) == maxTensors {
			return p.fail("the header names more than %d tensors", maxTensors)
		}
		t := tensor{name: name}
		if err := p.tensor(&t, 8+int64(n)); err != nil {
			return err
		}
		tensors = append(tensors, t)
		return nil
	})
	if err == nil {
		err = p.end()
	}
	if err != nil {
		return nil, err
	}
	return tensors, checkTensors(o, 8+int64(n), tensors)
}

// safetensorsLength says why no header can have n bytes, "" where one can.
func safetensorsLength(o *Object, n uint64) string {
	switch {
	case n < 2 || n > safetensorsMaxHeader:
		return fmt.Sprintf("the header claims %d bytes: 2 to %d are allowed", n, safetensorsMaxHeader)
	case int64(n) > o.Size-8:
		return fmt.Sprintf("the header claims %d bytes: %d follow", n, o.Size-8)
	}
	return ""
}

// tensor reads the header's entry for one tensor. The tensors' bytes begin at base.
func (p *objectParser) tensor(t *tensor, base int64) error {
	var offsets []int64
	err := p.object(func(key string) error {
		switch key {
		case "dtype":
			return p.value(&t.dtype)
		case "shape":
			return p.value(&t.shape)
		case "data_offsets":
			return p.value(&offsets)
		}
		return p.skip()
	})
	if err != nil {
		return err
	}
	t.at = p.offset()
	if t.dtype == "" || t.shape == nil || len(offsets) != 2 {
		return p.fail("tensor %q: dtype, shape and two data_offsets are expected", t.name)
	}
	begin, end, data := offsets[0], offsets[1], p.o.Size-base
	if begin < 0 || end < begin || end > data {
		return p.fail("tensor %q lies at %d to %d of %d bytes of data", t.name, begin, end, data)
	}
	t.begin, t.end = base+begin, base+end
	for _, dim := range t.shape {
		if dim < 0 {
			return p.fail("tensor %q has the shape %v", t.name, t.shape)
		}
	}
	elements, ok := product(1, t.shape, 0)
	if !ok {
		return p.fail("tensor %q has the shape %v, which counts more than 2^63 elements", t.name, t.shape)
	}
	width, _, known := safetensorsType(t.dtype)
	if !known {
		return nil // a later version's type: where it lies is checked all the same
	}
	size, ok := multiply(elements, width)
	if !ok || size%8 != 0 || size/8 != end-begin {
		return p.fail("tensor %q has %d elements of %s, %d bits each: they lie in %d bytes", t.name, elements, t.dtype, width, end-begin)
	}
	return nil
}

// checkTensors sorts the tensors by where they lie and checks that they cover the file from base to its end, once.
func checkTensors(o *Object, base int64, tensors []tensor) error {
	slices.SortStableFunc(tensors, func(a, b tensor) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	at := base
	for i := range tensors {
		if t := &tensors[i]; t.begin != at {
			what := "nothing lies between"
			if t.begin < at {
				what = "they overlap"
			}
			return corruptf(o, t.at, "tensor %q begins at %d, the tensor before it ends at %d: %s", t.name, t.begin, at, what)
		}
		at = tensors[i].end
	}
	if at != o.Size {
		return corruptf(o, at, "the tensors end at %d, the file at %d", at, o.Size)
	}
	return nil
}
