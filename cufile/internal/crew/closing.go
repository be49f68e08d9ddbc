package crew

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Closing waits for calls that may hang in the system or in a foreign library. All waiting, and its patience, is here.

// ErrUnderWay says that closing gave up waiting: the call's memory and files stay, and closing can be tried again.
var ErrUnderWay = errors.New("a call into the system or a GPU library is still under way")

// ClosePatience is how long closing waits for one step, which may be a read of a slow disk or hang in a foreign call.
const ClosePatience = 5 * time.Second

func underWay(waited time.Duration) error {
	return fmt.Errorf("%w after %v: what it uses stays until it ends", ErrUnderWay, waited)
}

// Await waits until a channel is closed, for ClosePatience at most.
func Await(ended <-chan struct{}) error {
	timer := time.NewTimer(ClosePatience)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return underWay(ClosePatience)
	}
}

// Gate counts the calls that use something which may only be closed after the last of them. The zero Gate is open.
type Gate struct {
	mu     sync.Mutex // guards the fields below
	inside int
	shut   bool
	empty  chan struct{} // made by Shut; closed once no call is inside
}

// Enter counts a call in until Leave. It is false once the gate is shut.
func (g *Gate) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		g.inside++
	}
	return !g.shut
}

// Leave ends a call that has entered.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.shut && g.inside == 0 {
		close(g.empty)
	}
}

// Shut lets no call enter any more. Its channel is closed once the calls inside have left.
func (g *Gate) Shut() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		g.shut, g.empty = true, make(chan struct{})
		if g.inside == 0 {
			close(g.empty)
		}
	}
	return g.empty
}

// IsShut says whether Shut was called.
func (g *Gate) IsShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

// DoAtLast runs f once on a worker, after all jobs that came before, however long they take. It fails with ErrUnderWay where
// no step ends for so long: a foreign call may hang, or a disk be slow. Then f may run yet, if it has begun.
func (c *Crew) DoAtLast(patience time.Duration, f func(w *Worker) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with ctx
		ticker := time.NewTicker(patience)
		defer ticker.Stop()
		for before := c.done.Load(); ; {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			now := c.done.Load()
			if now == before {
				cancel()
				return
			}
			before = now
		}
	}()
	err := c.Do(ctx, f)
	if errors.Is(err, context.Canceled) {
		return underWay(patience)
	}
	return err
}

// Close ends the workers. It fails with ErrUnderWay when one does not come back from its step; then Close waits again.
func (c *Crew) Close() error {
	c.last.Do(func() {
		close(c.quit)
		go c.end()
	})
	return Await(c.gone)
}

// RunQuiet is Run, but it returns only when nothing of the job writes any more. A job that a closed crew never began does not end.
func (c *Crew) RunQuiet(ctx context.Context, workers int, n int64, step func(w *Worker, i int64) error) error {
	finished, err := c.Run(ctx, workers, n, step)
	Quiet(finished, c)
	return err
}

// Quiet waits until nothing of a crew's job writes any more.
func Quiet(finished <-chan struct{}, c *Crew) {
	select {
	case <-finished:
	case <-c.gone:
	}
}
