package tokens

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestTokensEnd has tokens that last an hour. A keeper renews one before its end, uses it meanwhile and where that fails, and asks at most
// once a second.
func TestTokensEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var failure error
		k := Keep(func(context.Context) (*Token, error) {
			if asked++; failure != nil {
				return nil, failure
			}
			return New(fmt.Sprint("token-", asked), "a test", time.Now().Add(time.Hour))
		})
		want := func(text string, times int) {
			t.Helper()
			got, err := k.Get(t.Context())
			synctest.Wait() // for the next one
			if err != nil || got.Text != text || asked != times {
				t.Errorf("%+v after %d questions, %v: want %s after %d", got, asked, err, text, times)
			}
		}
		want("token-1", 1)
		time.Sleep(56 * time.Minute)
		want("token-1", 1)
		time.Sleep(time.Minute)
		want("token-1", 2)
		want("token-2", 2)
		failure = errors.New("out of order")
		time.Sleep(57 * time.Minute)
		want("token-2", 3)
		want("token-2", 3)
		time.Sleep(time.Second)
		want("token-2", 4)
		time.Sleep(3 * time.Minute)
		if _, err := k.Get(t.Context()); !errors.Is(err, failure) {
			t.Errorf("a token that has ended: %v", err)
		}
		failure = nil
		if _, err := k.Get(t.Context()); err == nil || asked != 5 {
			t.Errorf("%v after %d questions: a second has not passed", err, asked)
		}
		time.Sleep(time.Second)
		want("token-6", 6)
	})
}

// TestRefusals tells a token that never worked from one that did: the latter may have been replaced. One that is refused before it has worked is
// kept for a second, and so is the error of a failed try.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failure error
		asked := 0
		k := Keep(func(context.Context) (*Token, error) {
			if asked++; failure != nil {
				return nil, failure
			}
			return New("token", "a test", time.Time{})
		})
		get := func(times int) *Token {
			t.Helper()
			got, err := k.Get(t.Context())
			if err != nil || asked != times {
				t.Fatalf("%v after %d questions, want %d", err, asked, times)
			}
			return got
		}
		first := get(1)
		if k.Refused(first) {
			t.Error("a first token is to be asked for again")
		}
		if get(1) != first {
			t.Error("a token that was just refused is replaced at once")
		}
		time.Sleep(time.Second)
		k.Refused(first)
		failure = NoCredentialsf("no file")
		for range 3 {
			if _, err := k.Get(t.Context()); !errors.Is(err, fs.ErrPermission) || asked != 2 {
				t.Errorf("%v after %d questions", err, asked)
			}
		}
		failure = nil
		time.Sleep(time.Second)
		second := get(3)
		k.Taken(second)
		if !k.Refused(second) {
			t.Error("a token that has worked is not asked for again")
		}
		for _, failure = range []error{NoCredentialsf("no file"), fmt.Errorf("%w: no token", fs.ErrInvalid)} {
			if _, err := k.Get(t.Context()); err == nil || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrInvalid) {
				t.Errorf("after a token has worked: %v", err)
			}
			time.Sleep(time.Second)
		}
		failure = nil
		for i := range 5 { // as where a server refuses all tokens for a while
			if third := get(6 + i); !k.Refused(third) || get(6+i) != third {
				t.Error("a token that was just refused is replaced at once")
			}
			time.Sleep(time.Second)
			k.Refused(k.now)
		}
	})
	none, err := Keep(nil).Get(t.Context())
	if err != nil || none.Text != "" || none.None == "" {
		t.Errorf("%+v, %v", none, err)
	}
	for _, text := range []string{"", "a b", "a\n", "ü"} {
		if _, err := New(text, "a test", time.Time{}); err == nil {
			t.Errorf("%q is a token", text)
		}
	}
}

// TestTheServerOfTokensHangs: the token that counts is used meanwhile. Without one, each request waits as long as it likes, and all hear of the end
// of the try.
func TestTheServerOfTokensHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		var hangs atomic.Bool
		k := Keep(func(ctx context.Context) (*Token, error) {
			n := asked.Add(1)
			if hangs.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return New(fmt.Sprint("token-", n), "a test", time.Now().Add(time.Hour))
		})
		get := func(patience time.Duration) (string, time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began := time.Now()
			got, err := k.Get(ctx)
			if err != nil {
				return "", time.Since(began), err
			}
			return got.Text, time.Since(began), nil
		}
		if _, _, err := get(time.Second); err != nil {
			t.Error(err)
		}
		hangs.Store(true)
		time.Sleep(57 * time.Minute)
		for range 10 {
			if got, waited, err := get(time.Second); got != "token-1" || waited > 0 {
				t.Errorf("%q after %v: %v", got, waited, err)
			}
		}
		if synctest.Wait(); asked.Load() != 2 {
			t.Errorf("%d questions at once", asked.Load())
		}
		time.Sleep(5 * time.Minute) // beyond its end
		if _, waited, err := get(10 * time.Second); waited != 10*time.Second || !errors.Is(err, context.DeadlineExceeded) || asked.Load() != 3 {
			t.Errorf("%v after %v and %d questions", err, waited, asked.Load())
		}
		_, waited, err := get(time.Hour)
		if waited != tryWithin-10*time.Second || err == nil || errors.Is(err, context.DeadlineExceeded) || asked.Load() != 3 {
			t.Errorf("%v after %v and %d questions", err, waited, asked.Load())
		}
		if _, waited, err := get(time.Hour); waited > 0 || err == nil {
			t.Errorf("%v after %v: a second has not passed", err, waited)
		}
		hangs.Store(false)
		time.Sleep(time.Second)
		if got, _, err := get(time.Second); got != "token-4" {
			t.Errorf("%q, %v", got, err)
		}
	})
}
