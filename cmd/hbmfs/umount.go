package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/mounts/unmount"
)

func newUmountCommand() *cobra.Command {
	u := &unmount.Unmount{}
	cmd := &cobra.Command{
		Use:     "umount MOUNTPOINT...",
		Aliases: []string{"unmount"},
		Short:   "Unmount a mount",
		Long: `Take the mount at MOUNTPOINT away, and return when its daemon has ended, so that the source can be unmounted next. A
mount that is in use stays, and the message names the processes that hold it (exit code 4). A mount whose daemon died is
cleaned up.

No daemon is asked for this, so a stopped or deadlocked one does not prevent it. Where one does not end, the message has
its pid and the command that ends it, and the exit code is 1.

Of several mounts, each is tried. The exit code is that of the last that failed.`,
		Args:              someArgs("mount points"),
		ValidArgsFunction: completeMounts,
		RunE: func(cmd *cobra.Command, args []string) error {
			u.Stderr = cmd.ErrOrStderr()
			var failed error
			for _, u.Point = range args {
				err := u.Run(cmd.Context())
				if err != nil && failed != nil {
					fmt.Fprintf(u.Stderr, "hbmfs: %v\n", failed)
				}
				failed = cmp.Or(err, failed)
				if cmd.Context().Err() != nil {
					break
				}
			}
			return failed
		},
	}
	cmd.Flags().BoolVarP(&u.Lazy, "lazy", "l", false, "detach a mount that is in use now; its daemon ends with the last open file")
	cmd.Flags().BoolVarP(&u.Force, "force", "f", false, "end the mount for all users: waiting readers get an error, and a stuck daemon is killed")
	return cmd
}
