// Package usage marks mistakes of the command line: nothing was tried, and a command ends with the exit code for them.
package usage

import "fmt"

// Error is a mistake in what was asked for.
type Error struct{ Err error }

func (e Error) Error() string { return e.Err.Error() }

func (e Error) Unwrap() error { return e.Err }

// Errorf makes one, as [fmt.Errorf] does.
func Errorf(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }
