package main

import (
	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/fs"
)

// bindName is the command that a daemon starts to bind its control socket.
const bindName = "bind-control"

// bindHelper is for fs.Options.Helper.
func bindHelper() []string { return []string{"/proc/self/exe", bindName} }

func newBindCommand() *cobra.Command {
	return &cobra.Command{
		Use:    bindName + " MOUNTPOINT",
		Hidden: true, // not for people
		Args:   exactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return fs.Bind(args[0]) },
	}
}
