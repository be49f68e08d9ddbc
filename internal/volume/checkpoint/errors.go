package checkpoint

import (
	"errors"
	"fmt"
)

// The kinds of errors that are not the operating system's. Each error names a remedy in a sentence.
var (
	ErrInvalid = errors.New("invalid argument") // a name, a part, or files that are not those of the draft
	ErrExists  = errors.New("already there")    // something has the checkpoint's name
	ErrBusy    = errors.New("in use")           // a living process works on this name
	ErrForeign = errors.New("not ours")         // a hidden name is a link, another user's, or no directory
	ErrNone    = errors.New("no checkpoint")    // no manifest is there
	ErrOpen    = errors.New("open for writing") // a file of a draft is still written, or can be
	ErrDamaged = errors.New("damaged")          // a manifest or a file is not as it was published
)

// failure is an error of a kind.
type failure struct {
	kind error
	text string
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.kind }

func failf(kind error, format string, args ...any) error {
	return &failure{kind, fmt.Sprintf(format, args...)}
}
