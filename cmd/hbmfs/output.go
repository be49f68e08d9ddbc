package main

import (
	"encoding/json"
	"io"
	"sync"
)

// output is where a command prints. It remembers that something could not be written: a result that was cut is no success, and
// most printing functions cannot say so.
type output struct {
	to io.Writer

	mu  sync.Mutex // guards err
	err error
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.to.Write(p)
	o.err = err
	return n, err
}

func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// writeJSON prints a result for programs. Commands in it have & and >, which are not escaped.
func writeJSON(w io.Writer, value any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(value)
}
