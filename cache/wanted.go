package cache

import (
	"context"
	"errors"
)

// ErrUnwanted says that bytes did not come soon, and that nobody waits for them.
var ErrUnwanted = errors.New("nobody waits for it")

// Interest says who waits for a fetch.
type Interest int

// A reader comes before a plan. A fetch without either is not tried again.
const (
	Nobody Interest = iota
	Plan
	Reader
)

type interestKey struct{}

// WithInterest says of a fetch who waits for it, at any time. Without it a reader does.
func WithInterest(ctx context.Context, now func() Interest) context.Context {
	return context.WithValue(ctx, interestKey{}, now)
}

// InterestOf gives the interest of WithInterest.
func InterestOf(ctx context.Context) (now func() Interest) {
	if now, ok := ctx.Value(interestKey{}).(func() Interest); ok {
		return now
	}
	return func() Interest { return Reader }
}
