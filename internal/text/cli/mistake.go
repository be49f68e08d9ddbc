package cli

import "fmt"

// Mistake is one of the command line: nothing was tried, and a command ends with the exit code for mistakes.
type Mistake struct{ Err error }

func (m Mistake) Error() string { return m.Err.Error() }

func (m Mistake) Unwrap() error { return m.Err }

// Mistakef makes one, as [fmt.Errorf] does.
func Mistakef(format string, args ...any) error { return Mistake{fmt.Errorf(format, args...)} }
