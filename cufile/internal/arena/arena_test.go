package arena

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// TestFull: what does not fit yet waits for what is freed, and what never fits is refused.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(t.Context(), Options{Device: &device.Device{}, Bytes: 4 * Unit})
		must(t, err)
		if _, err := a.Reserve(t.Context(), 4*Unit+1); !errors.Is(err, source.ErrTooLarge) {
			t.Errorf("%v, want that it is too large", err)
		}
		first, err := a.Reserve(t.Context(), 1)
		must(t, err)
		second, err := a.Reserve(t.Context(), 3*Unit)
		must(t, err)
		if first != 0 || second != Unit {
			t.Errorf("they lie at %d and %d", first, second)
		}
		ctx, cancel := context.WithCancel(t.Context())
		came := make(chan int64, 1)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				if at, err := a.Reserve(ctx, Unit); err == nil {
					came <- at
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(came) != 0 {
			t.Error("what is in use was given away")
		}
		a.Free(first, 1)
		if at := <-came; at != first {
			t.Errorf("it lies at %d, want %d", at, first)
		}
		copy(a.Host(second), "bytes")
		got := make([]byte, 5)
		must(t, a.CopyOut(t.Context(), got, second))
		if !bytes.Equal(got, []byte("bytes")) {
			t.Errorf("%q", got)
		}
		for range 2 {
			must(t, a.Close())
		}
		if a.Host(0) != nil {
			t.Error("the memory is still there")
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
