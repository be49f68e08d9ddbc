package fs

import (
	"testing"
	"time"
)

func TestYieldsAreRare(t *testing.T) {
	var y yields
	now := time.Now()
	const calls = 10_000
	due := 0
	for range calls {
		if y.due(now) {
			due++
		}
	}
	if due == 0 || due > calls/2 { // the race detector has a pool forget a quarter
		t.Errorf("%d of %d calls at one time are due, want one for each processor", due, calls)
	}
	for i := range 100 {
		now = now.Add(yieldEvery)
		if !y.due(now) {
			t.Fatalf("the call after %v is not due", time.Duration(i+1)*yieldEvery)
		}
	}
}
