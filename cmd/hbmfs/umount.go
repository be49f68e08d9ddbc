package main

import (
	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/mounts/unmount"
)

func newUmountCommand() *cobra.Command {
	u := &unmount.Unmount{}
	cmd := &cobra.Command{
		Use:     "umount MOUNTPOINT",
		Aliases: []string{"unmount"},
		Short:   "Unmount a mount",
		Long: `Take the mount at MOUNTPOINT away, and return when its daemon has ended, so that the source can be unmounted next. A
mount that is in use stays, and the message names the processes that hold it (exit code 4). A mount whose daemon died is
cleaned up.

No daemon is asked for this, so a stopped or deadlocked one does not prevent it. Where one does not end, the message has
its pid and the command that ends it, and the exit code is 1.`,
		Args:              exactArgs(1),
		ValidArgsFunction: completeMounts,
		RunE: func(cmd *cobra.Command, args []string) error {
			u.Point, u.Stderr = args[0], cmd.ErrOrStderr()
			return u.Run(cmd.Context())
		},
	}
	cmd.Flags().BoolVarP(&u.Lazy, "lazy", "l", false, "detach a mount that is in use now; its daemon ends with the last open file")
	cmd.Flags().BoolVarP(&u.Force, "force", "f", false, "end the mount for all users: waiting readers get an error, and a stuck daemon is killed")
	return cmd
}
