package fetch

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// later is an error of a server that says when it wants to be asked again.
type later struct {
	error
	after time.Duration
}

func (e *later) Unwrap() error { return e.error }

// Later gives an error the Retry-After of the answer that it is of. The next attempt waits for as long, if patience allows that.
func Later(err error, h http.Header) error {
	text := strings.TrimSpace(h.Get("Retry-After"))
	after := time.Duration(0)
	if seconds, bad := strconv.ParseUint(text, 10, 31); bad == nil {
		after = time.Duration(seconds) * time.Second
	} else if at, bad := http.ParseTime(text); bad == nil {
		after = time.Until(at)
	}
	if err == nil || after <= 0 {
		return err
	}
	return &later{err, after}
}

// asked is the wait that the server of an error wants, 0 where it says none.
func asked(err error) time.Duration {
	if e := (*later)(nil); errors.As(err, &e) {
		return e.after
	}
	return 0
}
