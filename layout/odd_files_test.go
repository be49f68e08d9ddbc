package layout

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
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

// TestGGUFNamesAreBounded has 6.5 GB of keys. The file is given up after a header's worth of them.
func TestGGUFNamesAreBounded(t *testing.T) {
	const keys, most = 100_000, 110_000_000
	head := le("GGUF", uint32(3), uint64(0), uint64(keys))
	key := slices.Concat(le(uint64(maxGGUFString)), make([]byte, maxGGUFString), le(uint32(4), uint32(32)))
	var read atomic.Int64
	o := computed(int64(len(head)+keys*len(key)), 1, func(_ context.Context, dst []byte, first int64) error {
		read.Add(int64(len(dst)))
		for at := first; len(dst) > 0; {
			var n int
			if at < int64(len(head)) {
				n = copy(dst, head[at:])
			} else {
				number, within := (at-int64(len(head)))/int64(len(key)), (at-int64(len(head)))%int64(len(key))
				copy(key[8:], le(uint32(number)))
				n = copy(dst, key[within:])
			}
			dst, at = dst[n:], at+int64(n)
		}
		return nil
	})
	o.Name = "m.gguf"
	v, err := Index(t.Context(), []*Object{o}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	wantProblem(t, v, "m.gguf", "the names take more than 100000000 bytes")
	if n := read.Load(); n > most {
		t.Errorf("%d bytes were read, want at most %d", n, most)
	}
}

// TestGGUFHeadersShareTheBudget waits for room while other headers hold all of it.
func TestGGUFHeadersShareTheBudget(t *testing.T) {
	budget, data, reads := newHeaderBudget(), gguf(3, nil, []string{"a"}), 0
	o := computed(int64(len(data)), 1, func(_ context.Context, dst []byte, first int64) error {
		reads++
		copy(dst, data[first:])
		return nil
	})
	giveBack, err := budget.take(t.Context(), maxHeaders)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ggufRead(ctx, budget, o); !errors.Is(err, context.Canceled) || reads > 0 {
		t.Errorf("a header is read without room: %d reads, %v", reads, err)
	}
	giveBack()
	if tensors, err := ggufRead(t.Context(), budget, o); len(tensors) != 1 || err != nil {
		t.Errorf("%d tensors, %v", len(tensors), err)
	}
	if !budget.left.TryAcquire(maxHeaders) {
		t.Error("the header keeps its room")
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
