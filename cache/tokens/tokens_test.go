package tokens

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"
)

// TestTokensEnd has tokens that last an hour. A keeper renews one before its end, uses it on where that fails, and asks at most
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
			if err != nil || got.Text != text || asked != times {
				t.Errorf("%+v after %d questions, %v: want %s after %d", got, asked, err, text, times)
			}
		}
		want("token-1", 1)
		time.Sleep(56 * time.Minute)
		want("token-1", 1)
		time.Sleep(time.Minute)
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
		want("token-6", 6)
	})
}

// TestRefusals tells a token that never worked from one that did: the latter may have been replaced.
func TestRefusals(t *testing.T) {
	var failure error
	k := Keep(func(context.Context) (*Token, error) {
		if failure != nil {
			return nil, failure
		}
		return New("token", "a test", time.Time{})
	})
	first, err := k.Get(t.Context())
	if err != nil || k.Refused(first) {
		t.Errorf("a first token, refused: %v", err)
	}
	failure = NoCredentialsf("no file")
	if _, err := k.Get(t.Context()); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	failure = nil
	second, err := k.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k.Taken(second)
	if !k.Refused(second) {
		t.Error("a token that has worked is not asked for again")
	}
	failure = NoCredentialsf("no file")
	if _, err := k.Get(t.Context()); err == nil || errors.Is(err, fs.ErrPermission) {
		t.Errorf("after a token has worked: %v", err)
	}
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
