package cufile

import (
	"bytes"
	"context"
	"errors"
	"testing"
)

// TestCopyToWritesNothingAfterItReturned cancels a copy out of HBM while the GPU stands still.
func TestCopyToWritesNothingAfterItReturned(t *testing.T) {
	name, data := randomFile(t, 200_000, 22)
	o := smallOptions(fakeLibraries(t), Staged)
	r := newReader(t, o)
	v, err := openFileIn(t, r, name).Read(t.Context(), 0, int64(len(data)))
	must(t, err)
	defer v.Release()
	ask(t, o.Libraries.CUDA, "fake_cuda_hold")
	p := make([]byte, len(data))
	ctx, cancel := context.WithCancel(t.Context())
	copied := make(chan error, 1)
	go func() { copied <- v.CopyTo(ctx, p, 0) }()
	eventually(t, "nothing is copied", func() bool { return ask(t, o.Libraries.CUDA, "fake_cuda_pending") > 0 })
	cancel()
	err = <-copied
	ask(t, o.Libraries.CUDA, "fake_cuda_go_on")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// All threads have taken part in this, so that none is still at what was cancelled.
	for range 2 * o.Threads {
		_, err := r.crew.run(t.Context(), o.Threads, int64(o.Threads), func(*worker, int64) error { return nil })
		must(t, err)
	}
	if !bytes.Equal(p, make([]byte, len(p))) {
		t.Error("it wrote after it had returned")
	}
}
