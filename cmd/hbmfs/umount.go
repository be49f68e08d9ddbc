package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/aside"
)

// umountCommand is hbmfs umount.
type umountCommand struct {
	point       string
	lazy, force bool
	stderr      io.Writer
}

func newUmountCommand() *cobra.Command {
	c := &umountCommand{}
	cmd := &cobra.Command{
		Use:     "umount MOUNTPOINT",
		Aliases: []string{"unmount"},
		Short:   "Take a mount away",
		Long: `Take the mount at MOUNTPOINT away, and return when its daemon has ended, so that the source can be unmounted next. A
mount that is in use stays, and the message names the processes that hold it (exit code 4). A mount whose daemon died is
cleaned up.

No daemon is asked for this, so a stopped or deadlocked one does not prevent it. Where one does not end, the message has
its pid and the command that ends it, and the exit code is 1.`,
		Args:              exactArgs(1),
		ValidArgsFunction: completeMounts,
		RunE: func(cmd *cobra.Command, args []string) error {
			c.point, c.stderr = args[0], cmd.ErrOrStderr()
			return c.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVarP(&c.lazy, "lazy", "l", false, "take a mount that is in use out of the tree now; its daemon ends with the last open file")
	cmd.Flags().BoolVarP(&c.force, "force", "f", false, "end the mount for all that use it: waiting readers get an error, and a daemon that does not end is killed")
	return cmd
}

// How long a daemon may take to end: by itself, once its mount was aborted, and before umount --lazy goes on without it.
const (
	endTime   = 10 * time.Second
	abortTime = 2 * time.Second
	lazyTime  = 300 * time.Millisecond
)

func (c *umountCommand) run(ctx context.Context) error {
	place, err := fs.Locate(c.point)
	if err != nil {
		return err
	}
	if !place.HBMFS() {
		return fmt.Errorf("nothing of hbmfs is mounted at %s: findmnt -t fuse.hbmfs lists the mounts", place.Path)
	}
	daemon, err := findDaemon(ctx, place)
	if err != nil {
		return err
	}
	if daemon != nil {
		defer daemon.Close()
	}
	switch {
	case c.force:
		err = fs.Abort(place.On)
	case c.lazy:
		err = fs.Detach(place.Path)
	default:
		err = c.unmount(ctx, place, daemon)
	}
	if err != nil || daemon == nil {
		return err
	}
	if at := place.Elsewhere(); at != "" && !c.force {
		fmt.Fprintf(c.stderr, "hbmfs: the mount that was at %s is at %s as well, and its daemon (%v) goes on\n", place.Path, at, daemon)
		return nil
	}
	return c.await(ctx, place, daemon)
}

// unmount takes a mount away that is not in use, or whose daemon is gone.
func (c *umountCommand) unmount(ctx context.Context, place *fs.Place, daemon *fs.Daemon) error {
	err := fs.Unmount(place.Path)
	if !errors.Is(err, fs.ErrBusy) {
		return err
	}
	switch a := askOnce(ctx, place.Path); {
	case ctx.Err() != nil:
		return ctx.Err()
	case a.State == aside.Dead:
		return fs.Detach(place.Path)
	case a.State == aside.Silent:
		return fmt.Errorf("%w; and %s: umount --force %s ends the mount for all that use it", err, silence(place, daemon), place.Path)
	}
	return err
}

// await waits for the end of the daemon.
func (c *umountCommand) await(ctx context.Context, place *fs.Place, daemon *fs.Daemon) error {
	if c.force && (daemon.Stopped() || !endsWithin(ctx, daemon, abortTime)) {
		if err := daemon.Kill(); err != nil {
			return err
		}
	}
	limit := endTime
	if c.lazy {
		limit = lazyTime
	}
	began := time.Now()
	for !endsWithin(ctx, daemon, lazyTime) {
		switch other := fs.ShownBy(place.On); {
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %s is unmounted, but its daemon (%v) has not ended", errInterrupted, place.Path, daemon)
		case daemon.Stopped() && c.lazy:
			fmt.Fprintf(c.stderr, "hbmfs: %s is out of the tree, but its daemon (%v) is stopped: %s lets it end, %s ends it\n", place.Path, daemon, daemon.Command("CONT"), daemon.Command("KILL"))
			return nil
		case daemon.Stopped():
			return fmt.Errorf("%s is unmounted, but its daemon (%v) is stopped and cannot end: %s lets it end, %s ends it", place.Path, daemon, daemon.Command("CONT"), daemon.Command("KILL"))
		case other != 0 && !c.force:
			fmt.Fprintf(c.stderr, "hbmfs: %s is unmounted here, but its daemon (%v) goes on: the mount namespace of process %d has the mount as well\n", place.Path, daemon, other)
			return nil
		case time.Since(began) < limit:
		case c.lazy:
			fmt.Fprintf(c.stderr, "hbmfs: %s is out of the tree; its daemon (%v) ends with the last open file, and if it is stuck, by %s\n", place.Path, daemon, daemon.Command("KILL"))
			return nil
		default:
			return fmt.Errorf("%s is unmounted, but its daemon (%v) has not ended within %v: %s ends it", place.Path, daemon, endTime, daemon.Command("KILL"))
		}
	}
	return nil
}

func endsWithin(ctx context.Context, daemon *fs.Daemon, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return daemon.Ended(ctx)
}

// findDaemon finds the process that serves a mount, nil where nobody tells. A daemon that the kernel does not tell, or that lives in another
// PID namespace, has to be asked itself.
func findDaemon(ctx context.Context, place *fs.Place) (*fs.Daemon, error) {
	daemon, err := fs.FindDaemon(place.On)
	if daemon != nil || err != nil && !errors.Is(err, fs.ErrUntold) {
		return daemon, err
	}
	a := askOnce(ctx, filepath.Join(place.Path, fs.ControlName, "status"))
	var told struct{ PID int }
	if a.State != aside.OK || json.Unmarshal(a.Text, &told) != nil || told.PID <= 0 {
		return nil, ctx.Err()
	}
	if err != nil {
		daemon = fs.DaemonByPID(told.PID)
	}
	if daemon == nil {
		daemon = fs.DaemonOf(place.Path, told.PID)
	}
	return daemon, ctx.Err()
}
