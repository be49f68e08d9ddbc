package fs

import (
	"runtime"
	"sync"
	"time"
)

// yieldEvery is how often a processor of Go's scheduler is given back while requests come. The scheduler's monitor wants it
// within 10 ms.
const yieldEvery = 2 * time.Millisecond

// yields gives the processors of Go's scheduler back, now and then.
//
// While requests come, a loop of go-fuse leaves its processor by system calls only, which the scheduler does not count. After
// 10 ms its monitor takes the loop for a goroutine that lets nobody else run. It interrupts the loop, and looks every 20 us
// for the next 4 ms. On a small machine that is an eighth of the CPU time that opening and closing small files takes.
type yields struct {
	last sync.Pool // of *time.Time: one for each processor, or nearly
}

// yield lets other goroutines run if it is time for that. Nobody should be waiting for the caller.
func (y *yields) yield() {
	if y.due(time.Now()) {
		runtime.Gosched()
	}
}

func (y *yields) due(now time.Time) bool {
	last, _ := y.last.Get().(*time.Time)
	if last == nil {
		last = new(time.Time)
	}
	due := now.Sub(*last) >= yieldEvery
	if due {
		*last = now
	}
	y.last.Put(last)
	return due
}
