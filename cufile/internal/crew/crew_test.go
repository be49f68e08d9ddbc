package crew

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAtLast waits for what is under way as long as it goes on, and not for what hangs.
func TestAtLast(t *testing.T) {
	for name, tc := range map[string]struct {
		steps int64
		each  time.Duration
		hangs bool
	}{
		"long work":     {steps: 20, each: time.Second},
		"one long step": {steps: 3, each: time.Minute, hangs: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := New(Options{Threads: 1})
				if err != nil {
					t.Fatal(err)
				}
				var steps int64
				worked := make(chan error, 1)
				go func() {
					_, err := c.Run(context.Background(), 1, tc.steps, func(*Worker, int64) error {
						time.Sleep(tc.each)
						steps++
						return nil
					})
					worked <- err
				}()
				synctest.Wait() // the first step has begun
				var before int64
				err = c.DoAtLast(ClosePatience, func(*Worker) error { before = steps; return nil })
				switch {
				case tc.hangs && (err == nil || !strings.Contains(err.Error(), "still under way after 5s")):
					t.Errorf("%v, want that a step is under way", err)
				case !tc.hangs && (err != nil || before != tc.steps):
					t.Errorf("%v, after %d of %d steps", err, before, tc.steps)
				}
				if err := <-worked; err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestCrewWorksWithThoseWhoMay(t *testing.T) {
	c, err := New(Options{Threads: 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, most := range []int{1, 3, 4, 2} {
		c.Allow(most)
		busy := make(chan int, 100)
		release := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			_, err := c.Run(context.Background(), 4, 20, func(w *Worker, _ int64) error {
				busy <- w.index
				<-release
				return nil
			})
			ended <- err
		}()
		// Who waited for work when the number fell takes part once more, so all are seen only at the end.
		select {
		case <-busy:
		case <-time.After(time.Minute):
			t.Fatal("nobody works")
		}
		close(release)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	c.Allow(4)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
