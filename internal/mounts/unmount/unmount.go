// Package unmount takes mounts away and waits for their daemons, which are not asked: one that is stopped or stuck prevents nothing.
package unmount

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// Unmount is one mount that is to go.
type Unmount struct {
	Point  string
	Lazy   bool // take it out of the tree though it is in use
	Force  bool // end it for all that use it
	Stderr io.Writer
}

// How long a daemon may take to end: by itself, once its mount was aborted, and before umount --lazy goes on without it.
const (
	endTime   = 10 * time.Second
	abortTime = 2 * time.Second
	lazyTime  = 300 * time.Millisecond
)

// Run takes the mount away. It returns when the daemon has ended, and says why where that goes on.
func (u *Unmount) Run(ctx context.Context) error {
	place, err := mountpoint.Locate(u.Point)
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
	case u.Force:
		err = mountpoint.Abort(place.On)
	case u.Lazy:
		err = mountpoint.Detach(place.Path)
	default:
		err = u.unmount(ctx, place, daemon)
	}
	if err != nil || daemon == nil {
		return err
	}
	if at := place.Elsewhere(); at != "" && !u.Force {
		fmt.Fprintf(u.Stderr, "hbmfs: the mount that was at %s is at %s as well, and its daemon (%v) goes on\n", place.Path, at, daemon)
		return nil
	}
	return u.await(ctx, place, daemon)
}

// unmount takes a mount away that is not in use, or whose daemon is gone.
func (u *Unmount) unmount(ctx context.Context, place *mountpoint.Location, daemon *mountpoint.Daemon) error {
	err := mountpoint.Unmount(place.Path)
	if !errors.Is(err, mountpoint.ErrBusy) {
		return err
	}
	switch a := onmount.Ask(ctx, place.Path); {
	case ctx.Err() != nil:
		return ctx.Err()
	case a.State == aside.Dead:
		return mountpoint.Detach(place.Path)
	case a.State == aside.Silent:
		return fmt.Errorf("%w; and %s: umount --force %s ends the mount for all that use it", err, onmount.Silence(place, daemon), place.Path)
	}
	return err
}

// await waits for the end of the daemon.
func (u *Unmount) await(ctx context.Context, place *mountpoint.Location, daemon *mountpoint.Daemon) error {
	if u.Force && (daemon.Stopped() || !endsWithin(ctx, daemon, abortTime)) {
		if err := daemon.Kill(); err != nil {
			return err
		}
	}
	limit := endTime
	if u.Lazy {
		limit = lazyTime
	}
	began := time.Now()
	for !endsWithin(ctx, daemon, lazyTime) {
		switch other := mountpoint.ShownBy(place.On); {
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %s is unmounted, but its daemon (%v) has not ended", onmount.ErrInterrupted, place.Path, daemon)
		case daemon.Stopped() && u.Lazy:
			fmt.Fprintf(u.Stderr, "hbmfs: %s is out of the tree, but its daemon (%v) is stopped: %s lets it end, %s ends it\n", place.Path, daemon, daemon.Command("CONT"), daemon.Command("KILL"))
			return nil
		case daemon.Stopped():
			return fmt.Errorf("%s is unmounted, but its daemon (%v) is stopped and cannot end: %s lets it end, %s ends it", place.Path, daemon, daemon.Command("CONT"), daemon.Command("KILL"))
		case other != 0 && !u.Force:
			fmt.Fprintf(u.Stderr, "hbmfs: %s is unmounted here, but its daemon (%v) goes on: the mount namespace of process %d has the mount as well\n", place.Path, daemon, other)
			return nil
		case time.Since(began) < limit:
		case u.Lazy:
			fmt.Fprintf(u.Stderr, "hbmfs: %s is out of the tree; its daemon (%v) ends with the last open file, and if it is stuck, by %s\n", place.Path, daemon, daemon.Command("KILL"))
			return nil
		case os.Geteuid() != 0:
			return fmt.Errorf("%s is unmounted, but its daemon (%v) has not ended within %v: a mount namespace that only root sees may have the mount as well; if not, %s ends it",
				place.Path, daemon, endTime, daemon.Command("KILL"))
		default:
			return fmt.Errorf("%s is unmounted, but its daemon (%v) has not ended within %v: %s ends it", place.Path, daemon, endTime, daemon.Command("KILL"))
		}
	}
	return nil
}

func endsWithin(ctx context.Context, daemon *mountpoint.Daemon, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return daemon.Ended(ctx)
}

// findDaemon finds the process that serves a mount, nil where nobody tells. A daemon that the kernel does not tell, or that lives in another
// PID namespace, has to be asked itself.
func findDaemon(ctx context.Context, place *mountpoint.Location) (*mountpoint.Daemon, error) {
	daemon, err := mountpoint.FindDaemon(place.On)
	if daemon != nil || err != nil && !errors.Is(err, mountpoint.ErrUntold) {
		return daemon, err
	}
	a := onmount.Ask(ctx, filepath.Join(place.Path, mountpoint.ControlName, "status"))
	var told struct{ PID int }
	if a.State != aside.OK || json.Unmarshal(a.Text, &told) != nil || told.PID <= 0 {
		return nil, ctx.Err()
	}
	if err != nil {
		daemon = mountpoint.DaemonByPID(told.PID)
	}
	if daemon == nil {
		daemon = mountpoint.DaemonOf(place.Path, told.PID)
	}
	return daemon, ctx.Err()
}
