package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/aside"
	"github.com/hbmfs/hbmfs/internal/onmount"
	"github.com/hbmfs/hbmfs/internal/top"
)

// statusCommand is hbmfs status.
type statusCommand struct {
	paths    []string
	asJSON   bool
	patience time.Duration
	stdout   io.Writer
}

func newStatusCommand() *cobra.Command {
	c := &statusCommand{}
	cmd := &cobra.Command{
		Use:   "status [MOUNT...]",
		Short: "Show mounts, their datasets and views, and their problems",
		Long: `Show the source of each MOUNT (a mount point, or a path in a mount), its sets and views, how its bytes are read, and its
problems. Without MOUNT all mounts of this machine are shown.

A mount whose daemon is gone, stopped or stuck is shown as such, and the exit code is 3. --json prints
.hbmfs/status of the mount. hbmfs top shows rates.`,
		Example: "  hbmfs status /mnt/pile\n  hbmfs status --json /mnt/pile | jq '.mounts[].status.notes'",
		RunE: func(cmd *cobra.Command, args []string) error {
			c.paths, c.stdout = args, cmd.OutOrStdout()
			return c.run(cmd.Context())
		},
		ValidArgsFunction: completeMounts,
	}
	cmd.Flags().BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	cmd.Flags().DurationVar(&c.patience, "timeout", onmount.Patience, "how long a mount may take to answer")
	return cmd
}

// completeMounts offers a shell the mount points of hbmfs.
func completeMounts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	points, _ := top.Points() // a shell has no room for errors
	return points, cobra.ShellCompDirectiveNoFileComp
}

func (c *statusCommand) rows(ctx context.Context) ([]top.Row, error) {
	if len(c.paths) == 0 {
		samples, err := top.NewSampler(onmount.Self(), "status", c.patience).Sample(ctx)
		return top.Rows(samples, nil), err
	}
	var rows []top.Row
	for _, path := range c.paths {
		row, err := top.StatusOf(ctx, onmount.Self(), path, c.patience)
		if err != nil {
			return nil, err
		}
		rows = append(rows, *row)
	}
	return rows, nil
}

func (c *statusCommand) run(ctx context.Context) error {
	if c.patience <= 0 {
		return usageError{errors.New("--timeout must be more than nothing")}
	}
	rows, err := c.rows(ctx)
	if err != nil {
		return err
	}
	if c.asJSON {
		err = writeJSON(c.stdout, topJSON{time.Now(), rows})
	} else if len(rows) == 0 {
		fmt.Fprintln(c.stdout, noMounts)
	}
	for i := range rows {
		if !c.asJSON && err == nil {
			err = top.WriteStatus(c.stdout, &rows[i])
		}
		if rows[i].State != aside.OK {
			err = errors.Join(err, errProblems)
		}
	}
	return err
}
