package cufile

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/mapped"
)

// TestAutoStagesWhatCannotBeMapped has the driver refuse to register files. Who asked for mapped is told so.
func TestAutoStagesWhatCannotBeMapped(t *testing.T) {
	name, data := randomFile(t, 600_000, 28)
	for _, path := range []Path{Auto, Mapped} {
		o := smallOptions(fakeLibraries(t), path)
		o.Reuse, o.Probe = true, nil // so that Auto chooses mapped
		t.Setenv("FAKE_CUDA_PINNABLE", "900000")
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		v, err := f.Read(t.Context(), 0, f.Size())
		if path == Mapped {
			if !errors.Is(err, mapped.ErrUnmapped) || f.Moved().Total() != 0 {
				t.Errorf("mapped: %v, and %+v moved", err, f.Moved())
			}
			continue
		}
		must(t, err)
		if c := v.Choice(); c.Path != Staged || !strings.Contains(c.Why, "cannot be shown") || v.Moved() != (Moved{Staged: f.Size()}) {
			t.Errorf("auto: %+v, and %+v moved", c, v.Moved())
		}
		if !bytes.Equal(content(t, v), data) {
			t.Error("wrong bytes")
		}
		m := newMemory(t, r, f.Size(), 0)
		result, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, []int64{0}, f.Size())
		must(t, err)
		if result.Choice.Path != Staged || result.Moved != (Moved{Staged: f.Size()}) {
			t.Errorf("into memory of the caller: %+v", result)
		}
		m.holds(t, data, true)
	}
}
