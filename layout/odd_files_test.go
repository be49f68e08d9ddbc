package layout

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// wantProblem resolves and checks all sets, and wants a problem of an object that says so much.
func wantProblem(t *testing.T, v *Volume, object, says string) {
	t.Helper()
	for _, s := range v.Sets {
		if err := s.Check(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	problems := v.Problems()
	if !slices.ContainsFunc(problems, func(p Problem) bool { return p.Object == object && strings.Contains(p.Detail, says) }) {
		t.Errorf("%v are the problems, want that of %s: %q", problems, object, says)
	}
	for _, p := range problems {
		if strings.Contains(p.Detail, "<nil>") {
			t.Errorf("a problem shows nothing as something: %v", p)
		}
	}
}

// gguf makes a file with keys that have a u32 each, and tensors of one f32 each.
func gguf(version uint32, keys, tensors []string) []byte {
	var b bytes.Buffer
	text := func(s string) { b.Write(le(uint64(len(s)), s)) }
	b.Write(le("GGUF", version, uint64(len(tensors)), uint64(len(keys))))
	for _, key := range keys {
		text(key)
		b.Write(le(uint32(4), uint32(32)))
	}
	for i, name := range tensors {
		text(name)
		b.Write(le(uint32(1), uint64(1), uint32(0), uint64(32*i)))
	}
	b.Write(make([]byte, 32+32*len(tensors)))
	return b.Bytes()
}

// TestGGUFVerdicts has headers that cannot be believed. Neither the set nor the view of such a file shows a tensor.
func TestGGUFVerdicts(t *testing.T) {
	big := gguf(3, nil, nil)
	slices.Reverse(big[4:8])
	for what, c := range map[string]struct {
		data []byte
		says string
	}{
		"version 1":                 {gguf(1, nil, []string{"a"}), "version 1 is not known"},
		"big-endian":                {big, "big-endian"},
		"a key twice":               {gguf(3, []string{"a", "b", "a"}, []string{"t"}), `the key "a" is there twice`},
		"the alignment twice":       {gguf(3, []string{"general.alignment", "general.alignment"}, nil), "twice"},
		"two tensors with one name": {gguf(3, nil, []string{"a", "b", "a"}), `two tensors are called "a"`},
	} {
		t.Run(what, func(t *testing.T) {
			v := index(t, files{"m.gguf": c.data})
			wantProblem(t, v, "m.gguf", c.says)
			if v.Sets[0].Shards[0].Bad == "" {
				t.Error("the shard is sound")
			}
			for _, view := range v.Views {
				if view.Entries == nil {
					continue
				}
				if entries, err := view.Entries(t.Context()); err == nil || len(entries) > 0 {
					t.Errorf("view %s shows %d tensors, %v", view.Path, len(entries), err)
				}
			}
		})
	}
	v, _ := oneSet(t, files{"m.gguf": gguf(3, []string{"a", "b"}, []string{"a", "b"})})
	if p := v.Problems(); len(p) > 0 {
		t.Error(p)
	}
}

// TestHeaderFilledWithZeroes is a header of safetensors that a writer padded with NUL and not with spaces.
func TestHeaderFilledWithZeroes(t *testing.T) {
	for _, header := range []string{"{}\x00\x00\x00\x00\x00\x00", "{\x00\x00\x00\x00\x00\x00\x00"} {
		v := index(t, files{"m.safetensors": le(uint64(len(header)), header)})
		wantProblem(t, v, "m.safetensors", "")
	}
}

// TestBytesBehindTheEnd has something follow the end of an archive and of a stream.
func TestBytesBehindTheEnd(t *testing.T) {
	for dataset, extension := range map[string]string{"tar": ".tar", "webdataset": ".tar", "arrow": ".arrow"} {
		f := golden(t, dataset)
		for name, data := range f {
			if strings.HasSuffix(name, extension) {
				f[name] = append(bytes.Clone(data), "something else"...)
				if v := index(t, f); len(v.Sets) > 0 {
					wantProblem(t, v, name, "the end of the")
				}
				f[name] = data
			}
		}
	}
}
