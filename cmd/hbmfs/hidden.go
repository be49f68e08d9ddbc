package main

import (
	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/writer"
	"github.com/hbmfs/hbmfs/fs/control"
	"github.com/hbmfs/hbmfs/internal/commands/check/live"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// Names of hidden commands. For work that may hang, or must not harm, this program starts itself again.
const (
	bindName  = "bind-control" // a daemon binds its control socket
	asideName = "check-aside"  // hbmfs check puts questions that may hang
	probeName = "cufile-probe" // a reader proves the direct path
	writes    = "writes"       // its argument where a writer does
)

// addHidden adds the hidden commands. Their input and output are those of the packages that start them.
func addHidden(root *cobra.Command) {
	root.AddCommand(
		hidden(bindName, exactArgs(1), func(_ *cobra.Command, args []string) error { return control.Bind(args[0]) }),
		hidden(aside.FileCommand, exactArgs(1), func(cmd *cobra.Command, args []string) error { return aside.ReadFile(args[0], cmd.OutOrStdout()) }),
		hidden(asideName, cobra.RangeArgs(1, 2), func(cmd *cobra.Command, args []string) error {
			return live.Aside(cmd.Context(), args, cmd.OutOrStdout())
		}),
		hidden(probeName, cobra.MaximumNArgs(1), func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] == writes {
				return writer.RunProbe(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			}
			return cufile.RunProbe(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		}),
	)
}
