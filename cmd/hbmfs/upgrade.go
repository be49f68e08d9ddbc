package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/top"
	"github.com/hbmfs/hbmfs/internal/upgrade"
)

func newUpgradeCommand() *cobra.Command {
	var all, asJSON bool
	q := upgrade.Request{Program: self(), Patience: mountPatience}
	cmd := &cobra.Command{
		Use:   "upgrade [MOUNTPOINT...]",
		Short: "Have running mounts go on with this program",
		Long: `Have each mount at a MOUNTPOINT go on with this program: its daemon ends, and another takes over what is open, mapped
and under way. Readers wait for some milliseconds, and see no error.

The new daemon reads the state of the mount before the old one ends. Where it cannot, the mount stays as it is, the
message says why, and the exit code is 3. --check asks for that alone. A mount is handed over by its keeper, so it takes
Linux 6.9, root, and a mount without --no-keeper: hbmfs status says who holds a mount.`,
		Example: "  hbmfs upgrade --check --all\n  hbmfs upgrade /mnt/pile",
		RunE: func(cmd *cobra.Command, points []string) (err error) {
			if all != (len(points) == 0) {
				return usageError{errors.New("name mount points, or give --all")}
			}
			if all {
				if points, err = top.Points(); err != nil {
					return err
				}
			}
			results := make([]upgrade.Result, len(points))
			for i, point := range points {
				if results[i] = q.Mount(cmd.Context(), point); results[i].Refused != "" {
					err = errProblems
				}
				if !asJSON {
					err = errors.Join(err, results[i].Write(cmd.OutOrStdout(), q.Check))
				}
			}
			if asJSON {
				err = errors.Join(err, writeJSON(cmd.OutOrStdout(), results))
			}
			return err
		},
		ValidArgsFunction: completeMounts,
	}
	cmd.Flags().BoolVar(&all, "all", false, "all mounts of this machine")
	cmd.Flags().BoolVar(&q.Check, "check", false, "change nothing: say whether it could be done")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}
