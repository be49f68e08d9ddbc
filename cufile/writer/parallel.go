package writer

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// parallel does n things on so many goroutines, and waits for them. It ends at the first error, or with ctx. This is for work beside
// the crew, whose threads may be busy with other writes for long.
func parallel(ctx context.Context, threads int, n int64, do func(i int64) error) error {
	var next atomic.Int64
	var first error
	var once sync.Once
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fail := func(err error) {
		once.Do(func() { first = err })
		cancel()
	}
	for range min(int64(threads), n) {
		all.Go(func() {
			// An address without memory must not end the process.
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() {
				if fault := recover(); fault != nil {
					fail(fmt.Errorf("%w: %v", ErrMemory, fault))
				}
			}()
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				err := ctx.Err()
				if err == nil {
					err = do(i)
				}
				if err != nil {
					fail(err)
					return
				}
			}
		})
	}
	all.Wait()
	return first
}
