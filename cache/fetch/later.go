package fetch

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Later is an error after which the next attempt should wait, as a server asks by Retry-After. It waits no longer than patience lasts.
type Later struct {
	Err   error
	After time.Duration
}

func (l Later) Error() string { return l.Err.Error() }

func (l Later) Unwrap() error { return l.Err }

// RetryAfter makes an error a [Later] where an answer says how long to wait: in Retry-After, or in the t= of a RateLimit.
func RetryAfter(h http.Header, err error) error {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if _, reset, found := strings.Cut(h.Get("RateLimit"), ";t="); text == "" && found {
		text = strings.TrimSpace(reset)
	}
	after := time.Duration(0)
	if seconds, bad := strconv.ParseUint(text, 10, 31); bad == nil {
		after = time.Duration(seconds) * time.Second
	} else if at, bad := http.ParseTime(text); bad == nil {
		after = time.Until(at)
	}
	if after <= 0 {
		return err
	}
	return Later{err, after}
}

// asked is the wait that the server of an error wants, 0 where it says none.
func asked(err error) time.Duration {
	if later := (Later{}); errors.As(err, &later) {
		return later.After
	}
	return 0
}
