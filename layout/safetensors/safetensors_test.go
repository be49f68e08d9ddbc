package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// file makes a file of a header, and so many bytes of data.
func file(header string, data int) []byte {
	raw := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(raw, header...), make([]byte, data)...)
}

func open(raw []byte) (*Header, error) { return Open(bytes.NewReader(raw), int64(len(raw))) }

func TestHeader(t *testing.T) {
	header := `{ "b" :{"dtype":"BF16","shape":[ 2 , 3 ],"data_offsets":[4,16],"more":{"x":[1.5e3,-0,null,true,"\u00e9"]}},` +
		`"__metadata__":{"format":"pt"},"a\"\u00fc\ud83d\ude00\/":{"shape":[],"data_offsets":[0,4],"dtype":"F32"},"later":{"dtype":"F99","shape":[7],"data_offsets":[16,17]}}  `
	h, err := open(file(header, 17))
	if err != nil {
		t.Fatal(err)
	}
	base := int64(8 + len(header))
	want := []string{
		fmt.Sprint("a\"ü😀/", " F32 32 [] ", base, base+4), fmt.Sprint("b", " BF16 16 [2 3] ", base+4, base+16), fmt.Sprint("later", " F99 0 [7] ", base+16, base+17),
	}
	for i, x := range h.Tensors {
		if got := fmt.Sprint(x.Name, " ", x.DType, " ", x.Bits, " ", x.Shape, " ", x.Begin, x.End); got != want[i] {
			t.Errorf("tensor %d is %s, want %s", i, got, want[i])
		}
	}
	if len(h.Tensors) != 3 || h.Metadata["format"] != "pt" || len(h.Metadata) != 1 {
		t.Errorf("%d tensors, metadata %v", len(h.Tensors), h.Metadata)
	}
	if err := h.Known(); err == nil || !strings.Contains(err.Error(), `"later" has the dtype "F99"`) {
		t.Error(err)
	}
}

// TestPlaces says where in the file something is wrong.
func TestPlaces(t *testing.T) {
	for header, at := range map[string]int64{
		`{"a":nil}`: 8 + 5,
		`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`: 8 + 104,
		"{}  x":         8 + 4,
		"{\"a\x01\":1}": 8 + 3,
	} {
		_, err := open(file(header, 1))
		var bad *Error
		if !errors.As(err, &bad) || bad.At != at {
			t.Errorf("%s: %v at %d, want %d", header, err, bad.At, at)
		}
	}
}

func TestFailedReads(t *testing.T) {
	failing := errors.New("the disk is gone")
	if _, err := Open(readerAt{failing}, 100); !errors.Is(err, failing) {
		t.Error(err)
	}
	raw := file(`{}`, 0)
	if _, err := Open(bytes.NewReader(raw[:9]), int64(len(raw))); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Error(err) // it became shorter
	}
}

type readerAt struct{ err error }

func (r readerAt) ReadAt(p []byte, _ int64) (int, error) { return iotest.ErrReader(r.err).Read(p) }

func TestTruncation(t *testing.T) {
	whole := file(`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1],"x":[1.5,"\ud83d\ude00"]},"__metadata__":{"k":"v"}}`, 1)
	for n := range whole {
		if h, err := open(whole[:n]); err == nil {
			t.Fatalf("%d of %d bytes are believed: %v", n, len(whole), h)
		}
		cut := bytes.Clone(whole[:max(n, 8)]) // the length agrees: the JSON is what is cut
		binary.LittleEndian.PutUint64(cut, uint64(len(cut)-8))
		if h, err := open(cut); err == nil {
			t.Fatalf("%d of %d bytes are believed with their length: %v", n, len(whole), h)
		}
	}
	if _, err := open(whole); err != nil {
		t.Fatal(err)
	}
}

// FuzzHeader compares a header that is believed with what encoding/json reads, which is wider, and with the bytes that the tensors cover.
func FuzzHeader(f *testing.F) {
	for _, header := range []string{
		`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F4","shape":[2,1],"data_offsets":[1,2]}}`,
		`{"__metadata__":null,"x\u00fc\ud83d\ude00":{"dtype":"I64","shape":[0],"data_offsets":[0,0],"y":[{"z":-1.5e-3}]}} `,
		`{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}`, "{\"a\\ud800\":1}", `{"a":1e999}`, `[]`, ` {}`,
	} {
		f.Add([]byte(header), 2)
	}
	f.Fuzz(func(t *testing.T, header []byte, data int) {
		data = min(max(data, 0), 1<<16)
		h, err := open(file(string(header), data))
		if err != nil {
			var bad *Error
			if !errors.As(err, &bad) || bad.At < 0 || bad.At > int64(8+len(header)+data) {
				t.Fatalf("no place: %v", err)
			}
			return
		}
		var all map[string]json.RawMessage
		if err := json.Unmarshal(header, &all); err != nil {
			t.Fatalf("encoding/json refuses %q: %v", header, err)
		}
		at := int64(8 + len(header))
		for i := range h.Tensors {
			x := &h.Tensors[i]
			var want map[string]json.RawMessage // a struct's fields would be found in any case
			var dtype string
			var shape, offsets []int64
			err := errors.Join(json.Unmarshal(all[x.Name], &want), json.Unmarshal(want["dtype"], &dtype), json.Unmarshal(want["shape"], &shape),
				json.Unmarshal(want["data_offsets"], &offsets))
			if err != nil || dtype != x.DType || !slices.Equal(shape, x.Shape) || len(offsets) != 2 {
				t.Fatalf("%s was read as %v: %v", all[x.Name], x, err)
			}
			if x.Begin != at || x.End-x.Begin != offsets[1]-offsets[0] {
				t.Errorf("%v lies at %d", x, at)
			}
			at = x.End
		}
		delete(all, "__metadata__")
		if at != int64(8+len(header)+data) || len(all) != len(h.Tensors) {
			t.Errorf("%d of %d tensors, up to %d of %d", len(h.Tensors), len(all), at, 8+len(header)+data)
		}
	})
}
