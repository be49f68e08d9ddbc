package fetch

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"
)

// TestRetryAfter waits for as long as a server says, and no longer than patience allows.
func TestRetryAfter(t *testing.T) {
	for name, c := range map[string]struct {
		says        string
		least, most time.Duration
		fails       bool
		notices     int
	}{
		"seconds":        {"7", 14 * time.Second, 14 * time.Second, false, 1},
		"past patience":  {"86400", time.Minute, time.Minute, true, 1},
		"a date":         {"Sat, 01 Jan 2000 00:00:09 GMT", 9 * time.Second, 10 * time.Second, false, 1}, // fake time begins with 2000
		"in the past":    {"Thu, 01 Jan 1970 00:00:00 GMT", 0, time.Second, false, 0},
		"no number":      {"soon", 0, time.Second, false, 0},
		"less than none": {"-5", 0, time.Second, false, 0},
	} {
		inFakeTime(t, name, func(t *testing.T) {
			notices, left := 0, 2
			client := New(nil, Options{Patience: time.Minute, Retrying: func(error) { notices++ }})
			began := time.Now()
			err := client.Retry(t.Context(), func(context.Context, func()) error {
				if left--; left < 0 {
					return nil
				}
				return RetryAfter(http.Header{"Retry-After": {c.says}}, errors.New("503 Service Unavailable"))
			})
			if took := time.Since(began); took < c.least || took > c.most || errors.Is(err, ErrUnreachable) != c.fails {
				t.Errorf("%v after %v, want %v to %v, and an error: %v", err, took, c.least, c.most, c.fails)
			}
			if notices != c.notices {
				t.Errorf("%d notices, want %d", notices, c.notices)
			}
		})
	}
}
