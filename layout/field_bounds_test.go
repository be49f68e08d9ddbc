package layout

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestFieldsOfOneName has a field whose file is the offsets of another one.
func TestFieldsOfOneName(t *testing.T) {
	for _, columns := range [][][3]any{{{"x", "bytes", 0}, {"x.offsets", "int", 8}}, {{"x.offsets", "int", 8}, {"x", "bytes", 0}}} {
		value := [][]byte{[]byte("12345678"), []byte("12345678")}
		got, about := samples(t, index(t, mdsColumnsOf(t, columns, value)))
		if len(got) != 1 || got[columns[0][0].(string)] == nil || about.Fields[1].Missing != "files of another field have its name" {
			t.Errorf("%v: %+v", columns, about.Fields)
		}
	}
}

// TestFieldsOfNulls joins shards of which some have a field without a type, since all values are null, or without samples.
func TestFieldsOfNulls(t *testing.T) {
	shard := func(samples int64, f *field) *Shard {
		f.name = "x"
		return &Shard{Name: "s", fields: &fieldsOf{samples: samples, fields: []*field{f}}}
	}
	nulls := func(samples int64) *Shard {
		return shard(samples, &field{missing: "it is a column of null", nulls: true})
	}
	other := func(samples int64) *Shard { return shard(samples, &field{missing: "it is a column of bool"}) }
	dense := func() *Shard {
		f := &field{form: form{dtype: I32}}
		f.values.Add(Inline([]byte("12345678")), 0, 8)
		return shard(2, f)
	}
	twice := dense()
	twice.fields.fields = append(twice.fields.fields, nulls(2).fields.fields...)
	for name, c := range map[string]struct {
		shards  []*Shard
		missing string
		ragged  bool
		starts  []int64
	}{
		"first":             {[]*Shard{nulls(1), dense()}, "", true, []int64{0, 0, 1, 2}},
		"last":              {[]*Shard{dense(), nulls(2)}, "", true, []int64{0, 1, 2, 2, 2}},
		"all":               {[]*Shard{nulls(1), nulls(2)}, "all of its values are null", false, nil},
		"no samples":        {[]*Shard{dense(), nulls(0)}, "", false, nil},
		"another, none":     {[]*Shard{other(0), dense()}, "", false, nil},
		"another, some":     {[]*Shard{other(1), dense()}, "it is a column of bool", false, nil},
		"another and empty": {[]*Shard{other(0), other(0)}, "it is a column of bool", false, nil},
		"two of its name":   {[]*Shard{twice, dense()}, "several fields have its name", false, nil},
	} {
		s, left, parts := &Set{Shards: c.shards}, 0, 0
		for _, h := range c.shards {
			for _, f := range h.fields.fields {
				given := false
				parts, f.leave = parts+1, func() {
					if !given {
						given, left = true, left+1
					}
				}
			}
		}
		all, err := s.joinFields()
		if err != nil {
			t.Fatal(err)
		}
		f := all.fields[0]
		s.leaveFields(all.fields)
		if want := map[bool]int{true: parts}[f.missing != ""]; left != want {
			t.Errorf("%s: %d parts of %d give their room back, want %d", name, left, parts, want)
		}
		if f.missing != c.missing || c.missing == "" && (f.ragged != c.ragged || f.values.Size() != 8) {
			t.Errorf("%s: %q, ragged %v, %d bytes", name, f.missing, f.ragged, f.values.Size())
			continue
		}
		got := make([]int64, len(c.starts))
		if c.ragged && (DocumentStarts(t.Context(), f.index, got, 0) != nil || !slices.Equal(got, c.starts)) {
			t.Errorf("%s: the samples begin at %v, want %v", name, got, c.starts)
		}
	}
}

func TestFieldsOfTooManySamples(t *testing.T) {
	half := &fieldsOf{samples: maxArrowRows}
	s := &Set{Shards: []*Shard{{fields: half}, {fields: half}}}
	if _, err := s.joinFields(); err == nil || !strings.Contains(err.Error(), "more than 2^53 samples") {
		t.Errorf("%v", err)
	}
}

// TestLitdataSpecIsBounded has trees of which the names of the leaves, or their number, are far larger than the index.
func TestLitdataSpecIsBounded(t *testing.T) {
	leaves := func(name string, many int) string {
		return fmt.Sprintf(`[1, {"type": "dict", "context": %q, "children_spec": [{"type": "list", "context": "null", "children_spec": [%s{}]}]}]`,
			`["`+name+`"]`, strings.Repeat("{},", many-1))
	}
	for _, c := range []struct {
		name        string
		many        int
		first, last string
	}{
		{"x", 3, "x.0", "x.2"}, {strings.Repeat("x", maxMemberPath+1), 3, "0", "2"}, {strings.Repeat("x", maxMemberPath-10), maxFields, "xxx", ".1023"},
		{"x", 100_000, "0", "99999"},
	} {
		config := litdataConfig{DataSpec: leaves(c.name, c.many), DataFormat: make([]string, c.many)}
		names := config.leaves()
		if len(names) != c.many || !strings.HasPrefix(names[0], c.first) || !strings.HasSuffix(names[len(names)-1], c.last) {
			t.Errorf("%.10s: %d names, %.10q to %.10q", c.name, len(names), names[0], names[len(names)-1])
		}
	}
	var formats []string
	for range maxFields + 1 {
		formats = append(formats, "int")
	}
	data := litdataFile(nil)
	v := index(t, files{"chunk-0-0.bin": data, "index.json": litdataIndex(len(data), 1, nil, nil, map[string]any{"data_format": formats, "item_loader": "PyTreeLoader"})})
	if _, err := v.Sets[0].Fields(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 1024 leaves") {
		t.Errorf("%v", err)
	}
}

// TestLitdataFieldOfTokensChecksItsTable has items that do not begin where the table of offsets ends.
func TestLitdataFieldOfTokensChecksItsTable(t *testing.T) {
	data := litdataFile([]byte{1, 0, 2, 0}, []byte{3, 0})
	binary.LittleEndian.PutUint32(data[4:], 18)
	v := index(t, files{"chunk-0-0.bin": data, "index.json": litdataIndex(len(data), 2, 3)})
	if fields, err := v.Sets[0].Fields(t.Context()); err == nil || !strings.Contains(err.Error(), "is bad") {
		text, _ := json.Marshal(fields)
		t.Errorf("%s, %v", text, err)
	}
}
