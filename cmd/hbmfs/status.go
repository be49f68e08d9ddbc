package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/commands/top"
	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// statusCommand is hbmfs status.
type statusCommand struct {
	printer
	patience time.Duration
}

func newStatusCommand() *cobra.Command {
	c := &statusCommand{}
	cmd := &cobra.Command{
		Use:   "status [MOUNT...]",
		Short: "Show mounts, their datasets and views, and their problems",
		Long: `Show the source of each MOUNT, its sets and views, how its bytes are read, and its problems. MOUNT is a mount point, or a
path in a mount. Without MOUNT all mounts of this machine are shown.

A mount is degraded where reads have failed with ESTALE or EIO, or where its cache does not work. So it is where files that readers
past FUSE have were changed at the source. The exit code is 3 for such a mount, and for one whose daemon is gone, stopped or stuck. --json prints
.hbmfs/status of the mount. hbmfs top shows rates.`,
		Example: "  hbmfs status /mnt/pile\n  hbmfs status --json /mnt/pile | jq '.mounts[].status.notes'",
		RunE: func(cmd *cobra.Command, args []string) error {
			c.from(cmd)
			return c.run(cmd.Context(), args)
		},
		ValidArgsFunction: completeMounts,
	}
	c.takeJSON(cmd)
	cmd.Flags().DurationVar(&c.patience, "timeout", pause.Patience, "how long a mount may take to answer")
	return cmd
}

func (c *statusCommand) run(ctx context.Context, paths []string) error {
	if c.patience <= 0 {
		return cli.Mistakef("--timeout must be more than nothing")
	}
	rows, err := c.rows(ctx, paths)
	if err != nil {
		return err
	}
	err = c.print(mountRows{time.Now(), rows}, func() {
		if len(rows) == 0 {
			fmt.Fprintln(c.stdout, noMounts)
		}
		for i := range rows {
			_ = top.WriteStatus(c.stdout, &rows[i], columns(c.stdout)) // [output] remembers it
		}
	})
	return problems(err, slices.ContainsFunc(rows, func(r top.Row) bool { return r.State != aside.OK }))
}

// rows are those of the mounts that paths lie in, or of all.
func (c *statusCommand) rows(ctx context.Context, paths []string) ([]top.Row, error) {
	if len(paths) == 0 {
		samples, err := top.NewSampler(onmount.Self(), "status", c.patience).Sample(ctx)
		return top.Rows(samples, nil), err
	}
	var rows []top.Row
	for _, path := range paths {
		row, err := top.StatusOf(ctx, onmount.Self(), path, c.patience)
		if err != nil {
			return nil, err
		}
		rows = append(rows, *row)
	}
	return rows, nil
}
