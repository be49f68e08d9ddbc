package source

import "errors"

// Errors to be matched with errors.Is. Package cufile has them under the same names.
var (
	ErrTooLarge    = errors.New("too large")
	ErrUnavailable = errors.New("path is not available")
	ErrShort       = errors.New("file ended early: it was truncated after it was opened")
	ErrCrowded     = errors.New("no more files may be open")
)
