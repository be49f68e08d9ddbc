package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// usageError is a mistake on the command line.
type usageError struct{ error }

// exactArgs is for commands that take n arguments.
func exactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("it takes %d arguments, not %d: usage: %s", n, len(args), cmd.UseLine())}
		}
		return nil
	}
}

// someArgs is for commands that take one thing or more.
func someArgs(things string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError{fmt.Errorf("name the %s: usage: %s", things, cmd.UseLine())}
		}
		return nil
	}
}
