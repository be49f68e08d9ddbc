package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/aside"
	"github.com/hbmfs/hbmfs/internal/onmount"
)

// onMounts does the work of a command on paths, which may lie in mounts.
func onMounts(cmd *cobra.Command, paths []string, work func(ctx context.Context) error) error {
	return onmount.Do(cmd.Context(), paths, cmd.ErrOrStderr(), work)
}

// newFileAsideCommand is the command that an asker runs.
func newFileAsideCommand() *cobra.Command {
	return &cobra.Command{
		Use:    aside.FileCommand,
		Hidden: true, // not for people
		Args:   exactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return aside.ReadFile(args[0], cmd.OutOrStdout()) },
	}
}
