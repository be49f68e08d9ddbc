package cufile

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAtLast waits for what is under way as long as it goes on, and not for what hangs.
func TestAtLast(t *testing.T) {
	for name, c := range map[string]struct {
		steps int64
		each  time.Duration
		hangs bool
	}{
		"long work":     {steps: 20, each: time.Second},
		"one long step": {steps: 3, each: time.Minute, hangs: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				crew, err := newCrew(crewOptions{threads: 1})
				if err != nil {
					t.Fatal(err)
				}
				var steps int64
				worked := make(chan error, 1)
				go func() {
					_, err := crew.run(context.Background(), 1, c.steps, func(*worker, int64) error {
						time.Sleep(c.each)
						steps++
						return nil
					})
					worked <- err
				}()
				synctest.Wait() // the first step has begun
				var before int64
				err = crew.doAtLast(closePatience, func(*worker) error { before = steps; return nil })
				switch {
				case c.hangs && (err == nil || !strings.Contains(err.Error(), "still under way after 5s")):
					t.Errorf("%v, want that a step is under way", err)
				case !c.hangs && (err != nil || before != c.steps):
					t.Errorf("%v, after %d of %d steps", err, before, c.steps)
				}
				if err := <-worked; err != nil {
					t.Error(err)
				}
				if err := crew.close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
