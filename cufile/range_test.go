package cufile

import (
	"errors"
	"io"
	"testing"
)

// TestOneErrorForWhatIsNotThere asks for bytes that a file does not have, in every way that there is. The answer is the
// same, also where the request is larger than all memory.
func TestOneErrorForWhatIsNotThere(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, _ := randomFile(t, 10_000, 33)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		m := newMemory(t, r, 20_000, 0)
		const huge = 1<<63 - 1
		for _, s := range []Span{{-1, 1}, {0, 10_001}, {10_001, 0}, {1, huge}, {huge, 1}, {0, -1}, {0, huge}, {10_000, 1}, {-huge, huge}} {
			for what, ask := range map[string]func() error{
				"Read":        func() error { _, err := f.Read(t.Context(), s.Offset, s.Length); return err },
				"Gather":      func() error { _, err := f.Gather(t.Context(), []int64{0, s.Offset}, s.Length); return err },
				"GatherSpans": func() error { _, err := f.GatherSpans(t.Context(), []Span{{0, 1}, s}); return err },
				"GatherInto": func() error {
					_, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, []int64{0, s.Offset}, s.Length)
					return err
				},
				"BeginGather": func() error {
					_, err := f.BeginGather(t.Context(), Target{Memory: m.Memory}, []int64{s.Offset}, s.Length)
					return err
				},
				"Prefetch": func() error { return f.Prefetch(t.Context(), []Span{s}) },
				"Plain":    func() error { return f.Plain(t.Context(), s.Offset, s.Length) },
				"Stream": func() error {
					stream := f.Stream(t.Context(), []Span{s}, 1)
					defer stream.Close()
					_, err := stream.Next(t.Context())
					return err
				},
			} {
				if err := ask(); !errors.Is(err, ErrOutOfRange) || errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%s of %+v: %v, want %v", what, s, err, ErrOutOfRange)
				}
			}
		}
		v, err := f.Read(t.Context(), 0, 100)
		must(t, err)
		defer v.Release()
		for _, offset := range []int64{-1, 91, 101, huge} {
			if err := v.CopyTo(t.Context(), make([]byte, 10), offset); !errors.Is(err, ErrOutOfRange) {
				t.Errorf("CopyTo from %d: %v", offset, err)
			}
		}
	})
}
