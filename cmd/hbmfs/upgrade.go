package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/commands/upgrade"
	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

func newUpgradeCommand() *cobra.Command {
	var p printer
	q := upgrade.Request{Program: onmount.Self(), Patience: pause.Patience}
	cmd := &cobra.Command{
		Use:   "upgrade [MOUNTPOINT...]",
		Short: "Replace the daemons of running mounts by this program",
		Long: `Replace the daemon of each mount at a MOUNTPOINT by this program. The new daemon takes over open files, mappings and
requests. Readers wait for some milliseconds, and see no error.

The new daemon reads the state of the mount before the old one ends. Where it cannot, the mount stays as it is, the message says
why, and the exit code is 3. --check asks for that alone. A new daemon that then cannot load its KV volume is refused, too, and
the program before goes on. A mount is handed over by its keeper. That takes Linux 6.9, root, and a mount without --no-keeper;
hbmfs status names the holder.`,
		Example: "  hbmfs upgrade --check --all\n  hbmfs upgrade /mnt/pile",
		RunE: func(cmd *cobra.Command, points []string) error {
			if q.All != (len(points) == 0) {
				return cli.Mistakef("name mount points, or give --all")
			}
			p.from(cmd)
			results, refused, err := q.Run(cmd.Context(), points)
			if err == nil {
				err = p.print(results, func() { q.Write(p.stdout, results) })
			}
			if refused {
				err = errors.Join(err, errProblems)
			}
			return err
		},
		ValidArgsFunction: completeMounts,
	}
	cmd.Flags().BoolVar(&q.All, "all", false, "upgrade all mounts of this machine")
	cmd.Flags().BoolVar(&q.Check, "check", false, "change nothing; say whether the upgrade is possible")
	p.takeJSON(cmd)
	return cmd
}
