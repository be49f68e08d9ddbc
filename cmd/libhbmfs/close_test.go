package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
)

// TestClosingAgainWhatIsUnderWay closes a reader one of whose threads is busy for longer than that waits: the handle stays
// until closing was done.
func TestClosingAgainWhatIsUnderWay(t *testing.T) {
	l := newLibrary()
	handle, err := l.openReader(&readerOptions{Options: cufile.Options{Threads: 2, Slot: 64 << 10, Arena: 4 << 20, Libraries: fakeGPU(t)}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := find[*reader](l, handle)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := r.r.Wall(ctx, time.Hour) // one step
		ended <- err
	}()
	awaitStack(t, "cufile.repeatCopy")
	want(t, "close", l.closeReader(handle), codeTimeout)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("what was under way: %v", err)
	}
	want(t, "close again", l.closeReader(handle), codeOK)
	want(t, "close a third time", l.closeReader(handle), codeClosed)
}
