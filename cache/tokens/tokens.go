// Package tokens gives requests the credentials of their source: a token that ends, or a key that may be replaced. It renews
// them in time, and tells errors that mend from those that stay.
package tokens

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"
)

// Bounds of renewing.
const (
	earliest     = 225 * time.Second // before its end a token is renewed: Google's metadata server gives the same one until then
	betweenTries = time.Second       // of getting a token where the last try has failed, or where its token was refused at once
	tryWithin    = time.Minute       // a try ends, which may ask several servers
)

// Token is one that was given, or the knowledge that there are none.
type Token struct {
	Text string // "" for requests without
	Kind string // the source's word for how a request carries it
	From string // in words
	None string // why there is none, in words

	renew time.Time // zero: never
	end   time.Time
	given time.Time // to the keeper
	taken bool      // the server has answered a request with it
}

// New makes a token of a text that ends then, or never.
func New(text, from string, end time.Time) (*Token, error) {
	if text == "" || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil, fmt.Errorf("%s: the token that it gives is none", from)
	}
	k := &Token{Text: text, From: from, end: end}
	if !end.IsZero() {
		k.renew = end.Add(-min(earliest, time.Until(end)/4))
	}
	return k, nil
}

// Without is the token of requests that have none, and why.
func Without(format string, args ...any) *Token { return &Token{None: fmt.Sprintf(format, args...)} }

// Keeper has the token of the moment. It is safe for concurrent use.
type Keeper struct {
	fresh func(context.Context) (*Token, error)

	mu     sync.Mutex // guards what follows
	now    *Token
	under  *try      // that is under way, nil for none
	worked bool      // the server has taken one
	tried  time.Time // when renewing failed
	failed error     // why
}

// try is one call of fresh.
type try struct {
	over  chan struct{}
	token *Token // valid once over is closed, as err
	err   error
}

// Keep makes a keeper that gets tokens by fresh. It asks for one at a time, and looks up each time where they come from, so that
// a file of credentials may be replaced. Without fresh there are no tokens.
func Keep(fresh func(context.Context) (*Token, error)) *Keeper {
	return &Keeper{fresh: fresh}
}

// Anonymous tells whether requests never carry a token.
func (t *Keeper) Anonymous() bool { return t.fresh == nil }

// Get gives a token that counts, or an empty one for a request without credentials. While a token counts, Get does not wait for the next one.
func (t *Keeper) Get(ctx context.Context) (*Token, error) {
	if t.fresh == nil {
		return Without("requests carry no credentials, as the source or its endpoint says"), nil
	}
	k, under, err := t.current(ctx)
	if under == nil {
		return k, err
	}
	select {
	case <-under.over:
		return under.token, under.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// current is the token of the moment, or the try to wait for. It begins a try in time, but not too soon after one that failed, whose error it gives.
func (t *Keeper) current(ctx context.Context) (*Token, *try, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, now := t.now, time.Now()
	soon := t.failed != nil && now.Sub(t.tried) < betweenTries
	counts := k != nil && (k.end.IsZero() || now.Before(k.end))
	switch {
	case counts && (k.renew.IsZero() || now.Before(k.renew) || soon):
		return k, nil, nil
	case soon:
		return nil, nil, t.failed
	}
	if t.under == nil {
		t.under = &try{over: make(chan struct{})}
		go t.renew(context.WithoutCancel(ctx), t.under)
	}
	if counts {
		return k, nil, nil
	}
	return nil, t.under, nil
}

// renew carries a try out. It outlasts the request that began it, so that a server that hangs is known to all of them.
func (t *Keeper) renew(ctx context.Context, u *try) {
	ctx, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	k, err := t.fresh(ctx)
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("no token came within %v: %s", tryWithin, err.Error()) // no wrapping: it is not the requests that have ended
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(u.over)
	t.under = nil
	if err == nil {
		k.given = time.Now()
		t.now, t.failed, u.token = k, nil, k
		return
	}
	if t.worked && (errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrInvalid)) { // they will work again, as a rule: a file is replaced, or a pod's token
		err = errors.New(err.Error())
	}
	t.tried, t.failed, u.err = time.Now(), err, err
}

// Taken says that the server has answered a request with a token.
func (t *Keeper) Taken(k *Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k.taken = true
	t.worked = t.worked || k.Text != ""
}

// Refused says that the server does not know a token. It tells whether another one may be better: this one has worked, or others have that
// came from the same place. A token that never worked is kept for [betweenTries]: so a server that refuses all of them is asked for few.
func (t *Keeper) Refused(k *Token) (again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == k && (k.taken || time.Since(k.given) >= betweenTries) {
		t.now = nil
	}
	return k.Text != "" && t.worked
}
