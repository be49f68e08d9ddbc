package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// uneven is an origin that gives some objects at once, and none, or a byte a second, of others.
type uneven struct {
	latency time.Duration
	drips   bool
	well    atomic.Bool // all objects are, from now on
	under   atomic.Int64
	most    atomic.Int64
}

// Get implements [Getter].
func (u *uneven) Get(ctx context.Context, o *layout.Object, off, n int64) (*Answer, error) {
	under := u.under.Add(1)
	for most := u.most.Load(); under > most && !u.most.CompareAndSwap(most, under); most = u.most.Load() {
	}
	body := &unevenBody{u: u, ctx: ctx, left: int(n), drips: strings.HasPrefix(o.Name, "stalled") && !u.well.Load()}
	if body.drips && !u.drips {
		<-ctx.Done()
		u.under.Add(-1)
		return nil, ctx.Err()
	}
	if !body.drips {
		time.Sleep(u.latency)
	}
	return answerOf(o, off, n, body), nil
}

type unevenBody struct {
	u     *uneven
	ctx   context.Context
	drips bool
	left  int
}

func (b *unevenBody) Read(p []byte) (int, error) {
	if !b.drips {
		n := min(len(p), b.left)
		if b.left -= n; n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
	select {
	case <-time.After(time.Second):
		p[0] = 0
		return 1, nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b *unevenBody) Close() error { b.u.under.Add(-1); return nil }

func unevenObject(kind string, i int) *layout.Object {
	return &layout.Object{Name: fmt.Sprintf("%s %d", kind, i), Size: 1 << 20, Version: "1"}
}

// everyStall runs a test beside 8, 20 and 100 stalled objects of each kind, in time that is not real.
func everyStall(t *testing.T, test func(t *testing.T, c *Client, u *uneven, stalled int)) {
	for _, stalled := range []int{8, 20, 100} {
		for _, drips := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, drips %v", stalled, drips), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					u := &uneven{latency: 20 * time.Millisecond, drips: drips}
					c := New(u, Options{})
					for i := range 32 { // it learns how long answers take
						if _, err := c.ReadAt(t.Context(), unevenObject("known", i), make([]byte, 10), 0); err != nil {
							t.Fatal(err)
						}
					}
					test(t, c, u, stalled)
					if most := u.most.Load(); most > 16 {
						t.Errorf("%d requests were under way, 16 may be", most)
					}
				})
			})
		}
	}
}

// stall begins reads of stalled objects. end ends them, and gives their errors.
func stall(ctx context.Context, c *Client, stalled int) (end func() []error) {
	ctx, cancel := context.WithCancel(ctx)
	errs := make(chan error, stalled)
	for i := range stalled {
		go func() {
			_, err := c.ReadAt(ctx, unevenObject("stalled", i), make([]byte, 128<<10), 0)
			errs <- err
		}()
	}
	synctest.Wait()
	return func() (all []error) {
		cancel()
		for range stalled {
			all = append(all, <-errs)
		}
		return all
	}
}

// TestHealthyBesideStalled reads objects that nobody has read before, and one again and again.
func TestHealthyBesideStalled(t *testing.T) {
	everyStall(t, func(t *testing.T, c *Client, u *uneven, stalled int) {
		end := stall(t.Context(), c, stalled)
		began, again := time.Now(), unevenObject("known", 0)
		for i := 0; time.Since(began) < 60*time.Second; i++ {
			o := again
			if i%2 == 0 {
				o = unevenObject("healthy", i)
			}
			at := time.Now()
			if _, err := c.ReadAt(t.Context(), o, make([]byte, 128<<10), 0); err != nil {
				t.Fatal(err)
			}
			most := 2 * time.Second
			if at.Sub(began) > 5*time.Second {
				most = 2 * u.latency
			}
			if took := time.Since(at); took > most {
				t.Errorf("%v after the stall a read took %v, want at most %v", at.Sub(began), took, most)
			}
			time.Sleep(max(10*time.Millisecond, time.Since(began)/20))
		}
		for _, err := range end() {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a read that stalls ended with %v", err)
			}
		}
	})
}

// TestStalledComeBack has stalled objects be well again after a while. All of their readers get their bytes.
func TestStalledComeBack(t *testing.T) {
	everyStall(t, func(t *testing.T, c *Client, u *uneven, stalled int) {
		errs := make(chan error, stalled)
		for i := range stalled {
			go func() {
				_, err := c.ReadAt(t.Context(), unevenObject("stalled", i), make([]byte, 128<<10), 0)
				errs <- err
			}()
		}
		time.Sleep(20 * time.Second)
		u.well.Store(true)
		for range stalled {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestStalledEnd has objects stay stalled: their readers hear so in about their patience, however many wait.
func TestStalledEnd(t *testing.T) {
	everyStall(t, func(t *testing.T, c *Client, _ *uneven, stalled int) {
		errs, began := make(chan error, stalled), time.Now()
		for i := range stalled {
			go func() {
				_, err := c.ReadAt(t.Context(), unevenObject("stalled", i), make([]byte, 128<<10), 0)
				errs <- err
			}()
		}
		for range stalled {
			if err := <-errs; !errors.Is(err, ErrUnreachable) || time.Since(began) > c.opt.Patience+2*c.opt.Stall {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
	})
}

// TestSlowOriginIsNotSuspected has every answer take longer than a request may be silent while others wait. All reads end well.
func TestSlowOriginIsNotSuspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &uneven{latency: 3 * time.Second}
		c := New(u, Options{})
		errs := make(chan error)
		for i := range 100 {
			go func() {
				_, err := c.ReadAt(t.Context(), unevenObject("slow", i), make([]byte, 128<<10), 0)
				errs <- err
			}()
		}
		for range 100 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestUnwantedFetches stall. They are given up, and not tried again.
func TestUnwantedFetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &uneven{}
		c := New(u, Options{})
		ctx := cache.WithInterest(t.Context(), func() cache.Interest { return cache.Nobody })
		o, began := unevenObject("stalled", 0), time.Now()
		for range 2 {
			if err := c.Fetch(ctx, o, 0, 1000, func([]byte) error { return nil }); !errors.Is(err, cache.ErrUnwanted) {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > c.opt.Stall || c.Stats().Requests != 1 {
			t.Errorf("%d requests, which took %v", c.Stats().Requests, took)
		}
	})
}

// TestReadersComeFirst has fetches that nobody waits for take all turns that they may. A reader's begins at once.
func TestReadersComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &uneven{latency: 100 * time.Millisecond}
		c := New(u, Options{NoHedging: true})
		var wanted atomic.Int64
		over := make(chan error)
		ctx := cache.WithInterest(t.Context(), func() cache.Interest { return cache.Interest(wanted.Load()) })
		for i := range 30 {
			go func() {
				over <- c.Fetch(ctx, unevenObject("ahead", i), 0, 1000, func([]byte) error { return nil })
			}()
		}
		synctest.Wait()
		if n := u.under.Load(); n != 14 {
			t.Errorf("%d requests that nobody waits for are under way, 14 may be", n)
		}
		began := time.Now()
		if _, err := c.ReadAt(t.Context(), unevenObject("read", 0), make([]byte, 1), 0); err != nil || time.Since(began) != u.latency {
			t.Errorf("a read took %v, %v", time.Since(began), err)
		}
		wanted.Store(int64(cache.Reader))
		for range 30 {
			if err := <-over; err != nil {
				t.Error(err)
			}
		}
	})
}
