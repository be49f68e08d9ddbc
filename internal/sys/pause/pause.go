// Package pause waits for a time, or for the end of a context.
package pause

import (
	"context"
	"time"
)

// Look is the time between two looks at something that gives no notice of its change, and changes soon.
const Look = 20 * time.Millisecond

// Patience is how long a caller waits for an event that takes milliseconds as a rule, before it reports that the
// event has not come.
const Patience = 2 * time.Second

// For waits for d, or less where ctx ends, which is its error.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
