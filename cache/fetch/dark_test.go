package fetch

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestDark gives ranges up beside others that come or do not.
func TestDark(t *testing.T) {
	const patience = 10 * time.Second
	for name, c := range map[string]struct {
		before time.Duration // a byte came so long before the range was asked for; 0 for never
		during bool          // one comes meanwhile
		want   bool
	}{
		"never a byte":        {0, false, true},
		"nothing for a while": {2 * patience, false, true},
		"one just before":     {time.Second, false, false},
		"one meanwhile":       {2 * patience, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broken := errors.New("500")
				s := &script{data: make([]byte, 1000)}
				dark := false
				client := New(s, Options{Patience: patience, NoHedging: true, Dark: func(err error) { dark = errors.Is(err, broken) }})
				read := func() error { return client.Fetch(t.Context(), object(s), 0, 1000, func([]byte) error { return nil }) }
				s.do = func(_ int64, body []byte) (io.Reader, error) { return &paced{body: body, piece: 1000}, nil }
				if c.before > 0 {
					if err := read(); err != nil {
						t.Fatal(err)
					}
					time.Sleep(c.before)
				}
				s.do = func(request int64, body []byte) (io.Reader, error) {
					if c.during && request == 3 {
						return &paced{body: body[:10], piece: 10}, nil
					}
					return nil, broken
				}
				if err := read(); !errors.Is(err, ErrUnreachable) || dark != c.want {
					t.Errorf("the source is dark: %v, want %v; %v", dark, c.want, err)
				}
			})
		})
	}
}
