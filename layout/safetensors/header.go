// Package safetensors judges the headers of safetensors files: for the views of a mount, and, in libhbmfs, for programs that load weights.
//
// A file is a u64 header length (little-endian), a JSON object of that many bytes, and the tensors' bytes:
//
//	{"__metadata__": {string: string}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//
// begin and end count from the end of the header. The tensors cover everything behind it, without holes or overlap. Source:
// huggingface/safetensors, safetensors/src/tensor.rs (version 0.8.0).
//
// This package accepts the same files, except for four things that no writer produces. These are a name or key that is there twice, since readers
// differ in which one they take, and an entry in the form of a list. More than 2^20 tensors and a dimension of 2^63 or more are refused, too.
// Callers decide about types that the format does not have ([Header.Known]).
package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// MaxHeader is MAX_HEADER_SIZE there, bytes.
	MaxHeader = 100_000_000
	// MaxTensors bounds the memory of one file's tensors. The largest checkpoints have about 100,000 in all.
	MaxTensors = 1 << 20
)

// Error is a mistake in a file, and its place.
type Error struct {
	At     int64 // in the file, bytes
	Detail string
}

func (e *Error) Error() string { return e.Detail }

func errorf(at int64, format string, args ...any) error {
	return &Error{at, fmt.Sprintf(format, args...)}
}

// Header is the parsed header of a file.
type Header struct {
	Tensors  []Tensor // in the order of their bytes
	Metadata map[string]string
}

// Tensor is a header's entry for one tensor.
type Tensor struct {
	Name       string
	DType      string // as the header spells it
	Bits       int64  // of an element, 0 for a type that the format does not have
	Shape      []int64
	Begin, End int64 // in the file, bytes
	At         int64 // behind the header's words about it, bytes in the file
}

// bitsOf returns the bits of an element of a type, 0 for one that the format does not have.
func bitsOf(dtype string) int64 {
	switch dtype {
	case "F4":
		return 4
	case "F6_E2M3", "F6_E3M2":
		return 6
	case "BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ":
		return 8
	case "I16", "U16", "F16", "BF16":
		return 16
	case "I32", "U32", "F32":
		return 32
	case "C64", "F64", "I64", "U64":
		return 64
	}
	return 0
}

// HeaderSize returns how many bytes the header has, compared with the file's size. A mistake in the file is an [*Error].
func HeaderSize(r io.ReaderAt, size int64) (int64, error) {
	if size < 8 {
		return 0, errorf(0, "it has %d bytes, the length of the header alone has 8", size)
	}
	var first [8]byte
	if err := readFull(r, first[:], 0); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(first[:])
	if n > MaxHeader {
		return 0, errorf(0, "a header of %d bytes, at most %d are allowed", n, MaxHeader)
	}
	if int64(n) > size-8 {
		return 0, errorf(0, "it is cut off: a header of %d bytes, but only %d follow its length", n, size-8)
	}
	return int64(n), nil
}

// Open reads and checks the header of a file of so many bytes. A mistake in the file is an [*Error].
func Open(r io.ReaderAt, size int64) (*Header, error) {
	n, err := HeaderSize(r, size)
	if err != nil {
		return nil, err
	}
	text := make([]byte, n)
	if err := readFull(r, text, 8); err != nil {
		return nil, err
	}
	return parse(text, size)
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %d: %w", len(p), off, err)
}

// Known refuses tensors of a type that the format does not have: nobody can say whether they have as many bytes as they need.
func (h *Header) Known() error {
	for i := range h.Tensors {
		if t := &h.Tensors[i]; t.Bits == 0 {
			return errorf(t.At, "tensor %.80q has the dtype %.60q, which is none of the format's", t.Name, t.DType)
		}
	}
	return nil
}

// parse reads the header of a file of so many bytes.
func parse(text []byte, size int64) (*Header, error) {
	if !utf8.Valid(text) {
		return nil, errorf(8, "its header is not UTF-8")
	}
	s := &scanner{text: text}
	h := &Header{Metadata: map[string]string{}}
	if s.peek() == '{' {
		h.read(s)
	} else if s.value(1); s.err == nil {
		s.fail("its header must be a JSON object")
	}
	if s.peek(); s.i < len(text) {
		s.notJSON("the end")
	}
	if s.err != nil {
		return nil, s.err
	}
	return h, h.cover(8+int64(len(text)), size)
}

func (h *Header) read(s *scanner) {
	seen := map[string]struct{}{}
	s.object(func(key []byte) {
		name := string(key)
		_, twice := seen[name]
		seen[name] = struct{}{}
		switch {
		case twice:
			s.fail("%.80q is there twice", name)
		case name == "__metadata__":
			h.Metadata = s.metadata()
		case len(h.Tensors) == MaxTensors:
			s.fail("its header has more than %d tensors", MaxTensors)
		default:
			h.Tensors = append(h.Tensors, s.tensor(name))
		}
	})
}

func (s *scanner) metadata() map[string]string {
	m := map[string]string{}
	if s.peek() != '{' {
		if raw := s.value(2); s.err == nil && string(raw) != "null" {
			s.fail("__metadata__ must be an object of strings")
		}
		return m
	}
	s.object(func(key []byte) {
		if s.peek() != '"' {
			s.fail("__metadata__ must be an object of strings: %.80q is none", key)
			return
		}
		if _, twice := m[string(key)]; twice {
			s.fail("%.80q is there twice", key)
			return
		}
		m[string(key)] = string(s.str())
	})
	return m
}

// tensor reads the entry for one tensor, and checks it by itself. Begin and End still count from the end of the header.
func (s *scanner) tensor(name string) Tensor {
	t := Tensor{Name: name}
	if s.peek() != '{' {
		if s.value(2); s.err == nil {
			s.fail("tensor %.80q must be an object with dtype, shape and data_offsets", name)
		}
		return t
	}
	var dtype, shape, offsets []byte
	s.object(func(key []byte) {
		var later []byte // a field of a later version
		field := &later
		switch string(key) {
		case "dtype":
			field = &dtype
		case "shape":
			field = &shape
		case "data_offsets":
			field = &offsets
		}
		if *field != nil {
			s.fail("%q of tensor %.80q is there twice", key, name)
			return
		}
		*field = s.value(3)
	})
	t.At = 8 + int64(s.i)
	if s.err == nil {
		s.judge(&t, dtype, shape, offsets)
	}
	return t
}

// judge compares the fields of an entry with each other. Each is JSON, or nil where it is not there.
func (s *scanner) judge(t *Tensor, dtype, shape, offsets []byte) {
	if len(dtype) == 0 || dtype[0] != '"' {
		s.fail("tensor %.80q has the dtype %s, which is none of the format's", t.Name, shown(dtype))
		return
	}
	t.DType = string((&scanner{text: dtype}).str())
	t.Bits = bitsOf(t.DType)
	var ok bool
	if t.Shape, ok = sizes(shape); !ok {
		s.fail("tensor %.80q has the shape %s, expected a list of sizes", t.Name, shown(shape))
		return
	}
	place, ok := sizes(offsets)
	if !ok || len(place) != 2 || place[1] < place[0] {
		s.fail("tensor %.80q has the data_offsets %s, expected [begin, end]", t.Name, shown(offsets))
		return
	}
	t.Begin, t.End = place[0], place[1]
	elements, high := uint64(1), uint64(0)
	for i := 0; i < len(t.Shape) && high == 0; i++ {
		high, elements = bits.Mul64(elements, uint64(t.Shape[i]))
	}
	over, need := bits.Mul64(elements, uint64(t.Bits))
	switch {
	case high > 0 || over > 0:
		s.fail("tensor %.80q has the shape %s, which is more than any file can hold", t.Name, shown(shape))
	case t.Bits == 0: // where it lies is checked all the same
	case need%8 != 0 || need/8 != uint64(t.End-t.Begin):
		bytes := strconv.FormatFloat(float64(need)/8, 'g', 15, 64)
		s.fail("tensor %.80q of shape %s and dtype %s has data_offsets %s, expected %s bytes", t.Name, shown(shape), t.DType, shown(offsets), bytes)
	}
}

// sizes reads a list of whole numbers below 2^63. raw is JSON.
func sizes(raw []byte) (list []int64, ok bool) {
	text := string(raw)
	if !strings.HasPrefix(text, "[") {
		return nil, false
	}
	if text = strings.Trim(text[1:len(text)-1], space); text == "" {
		return []int64{}, true
	}
	list = make([]int64, 0, strings.Count(text, ",")+1)
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(strings.Trim(one, space), 10, 63)
		if err != nil {
			return nil, false
		}
		list = append(list, int64(n))
	}
	return list, true
}

// shown is JSON as an error shows it.
func shown(raw []byte) string {
	switch {
	case raw == nil:
		return "of nothing"
	case len(raw) > 60:
		return strings.ToValidUTF8(string(raw[:57]), "") + "..."
	}
	return strings.Join(strings.Fields(string(raw)), " ")
}

// cover sorts the tensors by where they lie, and checks that they cover the file from base to its end, once.
func (h *Header) cover(base, size int64) error {
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), cmp.Compare(a.At, b.At))
	})
	at := base
	for i := range h.Tensors {
		t := &h.Tensors[i]
		data := size - base // no sum below is more than two files' bytes
		if t.End > data {
			return errorf(t.At, "tensor %.80q ends at %d of the data, which has %d bytes", t.Name, t.End, data)
		}
		t.Begin, t.End = base+t.Begin, base+t.End
		if t.Begin != at {
			what := fmt.Sprintf("leaves %d bytes unused before it", t.Begin-at)
			if t.Begin < at {
				what = "overlaps the tensor before it"
			}
			return errorf(t.At, "tensor %.80q %s: it begins at %d, expected %d", t.Name, what, t.Begin, at)
		}
		at = t.End
	}
	if at != size {
		return errorf(at, "the tensors end at %d, but the file has %d bytes", at, size)
	}
	return nil
}
