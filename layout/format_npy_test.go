package layout

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// npyFile writes a header with any dictionary, and data.
func npyFile(major byte, dict string, data ...byte) []byte {
	b := append([]byte(npyMagic), major, 0)
	if major == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(dict)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(dict)))
	}
	return append(append(b, dict...), data...)
}

func npyDict(descr, order, shape string) string {
	return fmt.Sprintf("{'descr': %s, 'fortran_order': %s, 'shape': %s, }\n", descr, order, shape)
}

func TestNPYGolden(t *testing.T) {
	for _, dataset := range []string{"npy", "npy-v2", "npy-v3"} {
		checkGoldenViews(t, checkGolden(t, dataset), dataset)
	}
}

func TestNPYThatIsNoStreamIsServedAndSaysWhy(t *testing.T) {
	for dataset, why := range map[string]string{"npy-fortran": "Fortran order", "npy-bigendian": "big-endian"} {
		v, s := oneSet(t, golden(t, dataset))
		if s.Format != "npy" || !strings.Contains(s.NoTokens, why) {
			t.Errorf("%s: format %s, NoTokens %q", dataset, s.Format, s.NoTokens)
		}
		if _, ok := readView(t, v, "tokens.npy"); ok {
			t.Errorf("%s: tokens.npy exists", dataset)
		}
	}
}

func TestNPYHeaders(t *testing.T) {
	for _, c := range []struct {
		name, dict string
		data       int
		dtype      DType
		tokens     int64
		noTokens   string
		problem    string
	}{
		{"plain", npyDict("'<u2'", "False", "(3,)"), 6, U16, 3, "", ""},
		{"rows", npyDict("'<i4'", "False", "(2, 3)"), 24, I32, 6, "", ""},
		{"rows of nothing", npyDict("'<i4'", "False", "(2, 0)"), 0, I32, 0, "", ""},
		{"fortran in one dimension", npyDict("'<i8'", "True", "(2,)"), 16, I64, 2, "", ""},
		{"fortran column", npyDict("'<i8'", "True", "(2, 1)"), 16, I64, 2, "", ""},
		{"fortran", npyDict("'<i8'", "True", "(2, 2)"), 32, I64, -1, "Fortran", ""},
		{"double quotes, other order", `{"shape":(1L,),"descr":"|u1","fortran_order":False}`, 1, U8, 1, "", ""},
		{"floats", npyDict("'<f4'", "False", "(1,)"), 4, F32, -1, "no integers", ""},
		{"booleans", npyDict("'|b1'", "False", "(1,)"), 1, Bool, -1, "no integers", ""},
		{"characters", npyDict("'<U3'", "False", "(2,)"), 24, DTypeUnknown, -1, "no integers", ""},
		{"dates", npyDict("'<M8[ns]'", "False", "(2,)"), 16, DTypeUnknown, -1, "no integers", ""},
		{"big-endian", npyDict("'>u2'", "False", "(2,)"), 4, DTypeUnknown, -1, "big-endian", ""},
		{"scalar", npyDict("'<u2'", "False", "()"), 2, U16, -1, "single number", ""},
		{"objects", npyDict("'|O'", "False", "(2,)"), 99, DTypeUnknown, -1, "objects", ""},
		{"structure", npyDict("[('a', '<u2'), ('b', [('c', '<f4', (2, 2))])]", "False", "(2,)"), 50, DTypeUnknown, -1, "structures", ""},
		{"too short", npyDict("'<u2'", "False", "(3,)"), 5, U16, -1, "", "takes 6 bytes after the header, the file has 5"},
		{"too long", npyDict("'<u2'", "False", "(3,)"), 7, U16, 3, "", "1 bytes follow an array"},
		{"overflow", npyDict("'<u2'", "False", "(4294967296, 4294967296)"), 4, 0, -1, "header", "overflows 64 bits"},
		{"overflow of bytes", npyDict("'<i8'", "False", "(4611686018427387904,)"), 4, 0, -1, "header", "overflows 64 bits"},
		{"overflow of digits", npyDict("'<i8'", "False", "(92233720368547758070,)"), 4, 0, -1, "header", "no integer of 64 bits"},
		{"nothing in a huge shape", npyDict("'<i8'", "False", "(9223372036854775807, 0, 9223372036854775807)"), 0, I64, 0, "", ""},
		{"negative", npyDict("'<u2'", "False", "(-1,)"), 4, 0, -1, "header", "dimensions from 0"},
		{"shape of text", npyDict("'<u2'", "False", "('3',)"), 4, 0, -1, "header", "dimensions from 0"},
		{"shape is no tuple", npyDict("'<u2'", "False", "(3)"), 6, 0, -1, "header", "no tuple"},
		{"unknown type", npyDict("'<q2'", "False", "(3,)"), 6, 0, -1, "header", "no NumPy type"},
		{"order is text", npyDict("'<u2'", "'False'", "(3,)"), 6, 0, -1, "header", "fortran_order"},
		{"key twice", "{'shape': (1,), 'shape': (1,), 'descr': '<u2'}", 2, 0, -1, "header", "twice"},
		{"key missing", "{'shape': (1,), 'descr': '<u2'}", 2, 0, -1, "header", "2 keys"},
		{"code", "__import__('os')", 2, 0, -1, "header", "no Python dictionary"},
		{"deep", npyDict(strings.Repeat("[", 1000), "False", "(3,)"), 6, 0, -1, "header", "does not end"},
	} {
		v := index(t, files{"a.npy": npyFile(1, c.dict, make([]byte, c.data)...)})
		if len(v.Sets) != 1 {
			t.Fatalf("%s: %d sets", c.name, len(v.Sets))
		}
		s := v.Sets[0]
		if s.DType != c.dtype || s.Tokens() != c.tokens || !strings.Contains(s.NoTokens, c.noTokens) || (s.NoTokens == "") != (c.noTokens == "") {
			t.Errorf("%s: dtype %s, %d tokens, NoTokens %q", c.name, s.DType, s.Tokens(), s.NoTokens)
		}
		problems := fmt.Sprint(v.Problems())
		if (c.problem == "") != (len(v.Problems()) == 0) || !strings.Contains(problems, c.problem) {
			t.Errorf("%s: problems %s, want %q", c.name, problems, c.problem)
		}
	}
}

func TestNPYLongHeader(t *testing.T) {
	pad := func(n int) string { return npyDict("'<u2'", "False", "(1,)") + strings.Repeat(" ", n) }
	_, s := oneSet(t, files{"a.npy": npyFile(2, pad(9000), 7, 0)})
	if s.Tokens() != 1 {
		t.Errorf("%d tokens behind a header longer than a probe reads", s.Tokens())
	}
	v := index(t, files{"a.npy": npyFile(2, pad(10001), 7, 0), "b.npy": append([]byte(npyMagic), 2, 0, 0xff, 0xff, 0xff, 0xff), "c.npy": append([]byte(npyMagic), 4, 0, 0, 0)})
	if p := v.Problems(); len(p) != 3 {
		t.Errorf("problems %v", p)
	}
}

func TestNPYSetsByTypeSplitAndRow(t *testing.T) {
	array := func(d DType, shape ...int64) []byte {
		n := int64(d.Size())
		for _, k := range shape {
			n *= k
		}
		return append(NPYHeader(d, shape...), make([]byte, n)...)
	}
	v := index(t, files{
		"documents.npy":  array(I64, 3),
		"tokens_0.npy":   array(U16, 100),
		"tokens_1.npy":   array(U16, 50),
		"s/train_0.npy":  array(U32, 4),
		"s/val_0.npy":    array(U32, 2),
		"rows/a.npy":     array(I32, 4, 8),
		"rows/b.npy":     array(I32, 2, 8),
		"rows/pairs.npy": array(I32, 3, 2),
	})
	var got []string
	for _, s := range v.Sets {
		got = append(got, fmt.Sprintf("%s: %s %d %d", s.ViewDir(), s.DType, len(s.Shards), s.Tokens()))
	}
	want := []string{": u16 2 150", "npy: i64 1 3", "rows/npy: i32 1 6", "rows: i32 2 48", "s/train: u32 1 4", "s/val: u32 1 2"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("sets %q, want %q", got, want)
	}
}

func TestNPYDamagedShardTakesTheStreamAway(t *testing.T) {
	good := append(NPYHeader(U16, 2), 1, 0, 2, 0)
	v := index(t, files{"t_0.npy": good, "t_1.npy": good[:40], "t_2.npy": good})
	if len(v.Sets) != 1 || len(v.Sets[0].Shards) != 3 || len(v.Problems()) != 1 {
		t.Fatalf("%d sets, problems %v", len(v.Sets), v.Problems())
	}
	if _, ok := readView(t, v, "tokens.npy"); ok {
		t.Error("a stream that lacks a shard is shown")
	}
}

// OLMo and Dolma call headerless tokens .npy: the name is no evidence.
func TestNPYNameIsNoEvidence(t *testing.T) {
	v := index(t, files{"part-0-00000.npy": {1, 0, 2, 0}})
	for _, s := range v.Sets {
		if s.Format == "npy" {
			t.Error("a file without the magic is taken for a NumPy array")
		}
	}
}

func TestNPYTruncation(t *testing.T) {
	for _, dataset := range []string{"npy", "npy-v3", "npy-fortran"} {
		f := golden(t, dataset)
		for name := range f {
			sweep(t, f, name)
		}
	}
}

// FuzzNPY writes what it read again: a header that is believed gives back type, shape and data.
func FuzzNPY(f *testing.F) {
	for _, dataset := range []string{"npy", "npy-v2", "npy-v3", "npy-fortran", "npy-bigendian"} {
		for _, data := range golden(f, dataset) {
			f.Add(data)
		}
	}
	f.Add(npyFile(1, npyDict("'<u2'", "False", "(1, 2)"), 1, 2, 3, 4))
	f.Add(npyFile(1, npyDict("[('a', '<u2')]", "False", "(1L,)"), 1, 2))
	f.Fuzz(func(t *testing.T, data []byte) {
		v := exercise(t, files{"a.npy": data})
		a, err := readNPYHeader(t.Context(), Bytes("a.npy", data))
		if err != nil {
			return
		}
		if a.dtype.NumPy() != "" && !a.fortran && len(a.shape) < 100 {
			text, err := parseNPYDictionary(bytes.TrimSpace(NPYHeader(a.dtype, a.shape...)[10:]))
			if err != nil || text.dtype != a.dtype || !slices.Equal(text.shape, a.shape) {
				t.Errorf("%+v written and read again: %+v, %v", a, text, err)
			}
		}
		for _, s := range v.Sets {
			if s.Format != "npy" || s.Bad() != nil || s.NoTokens != "" {
				continue
			}
			tokens, _ := readView(t, v, s.ViewDir()+"tokens.bin")
			if want := data[a.data : a.data+a.count*a.item]; !bytes.Equal(tokens, want) {
				t.Errorf("tokens %x, want %x", tokens, want)
			}
		}
	})
}
