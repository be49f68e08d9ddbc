package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/daemon/dataset"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/mounts/ready"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// Mount is a mount that is asked for.
type Mount struct {
	Source, Point string
	Dataset       dataset.Options // how the source is opened, if it is a dataset
	Select        []string        // NAME=FILE: documents that have views of their own
	Checkpoints   Checkpoints
	KV            KV
	Options       fs.Options // of the mount, as far as they do not depend on the source

	Foreground bool
	NoKeeper   bool // the mount ends with its daemon
	NoSpare    bool // no second daemon waits for its turn
	LogFile    string
	LogLevel   string // debug, info, warn or error

	Stdout, Stderr io.Writer
	ExitCode       func(error) int // of an error that the command which started the daemon says

	notes    []string // of the mount point
	places   places
	selected dataset.Selections
}

// SourceError is the error of opening the source of a mount.
type SourceError struct{ error }

func (e SourceError) Unwrap() error { return e.error }

// Run makes the mount. Without Foreground it returns when the mount can be used; in the daemon and in the foreground, when it has ended.
func (m *Mount) Run(ctx context.Context) error {
	life, err := handover.Inherited()
	if err == nil && life.Adopts() {
		err = errors.Join(life.Load(&m.places), life.Load(&m.selected))
		m.Source, m.Point, m.LogFile, m.Dataset.CacheDir = m.places.Source, m.places.Point, m.places.Log, m.places.CacheDir
	} else if err == nil {
		if err = m.selected.Read(m.Select); err == nil {
			err = m.check(ctx)
		}
		if err == nil && !m.Foreground && os.Getenv(ready.Env) == "" {
			return (&start{Point: m.Point, LogName: m.logName(), Log: m.openLog, Stdout: m.Stdout, Stderr: m.Stderr, Mistake: m.ExitCode(cli.Mistake{})}).run(ctx)
		}
		m.places = places{Source: m.Source, Point: m.Point, Log: m.LogFile, CacheDir: m.Dataset.CacheDir}
		err = errors.Join(err, m.places.absolute())
		m.LogFile = m.places.Log // the status names it to programs with other working directories
	}
	if err != nil {
		return m.failed(life, &ready.Report{}, err)
	}
	if life == nil && !m.NoKeeper && os.Geteuid() == 0 {
		life = handover.New()
	}
	if m.NoSpare || m.Checkpoints.On || m.KV.On { // of a volume the state changes with each draft or block
		life.NoSpare()
	}
	if !life.Spare() {
		handover.Rename(handover.DaemonComm)
	}
	report := ready.New(m.Foreground)
	defer report.Close()
	if err := m.serve(ctx, life, report); err != nil {
		return m.failed(life, report, err)
	}
	return nil
}

// failed tells why the mount failed: the holder of the mount, and the command that started this daemon.
func (m *Mount) failed(life *handover.Life, report *ready.Report, err error) error {
	if errors.Is(err, handover.ErrNoTurn) {
		return onmount.Ended(m.ExitCode(err)) // nobody needs to hear of it
	}
	err = life.Failed(err)
	if report.Failed(err) && !m.Foreground { // that command says it
		return onmount.Ended(m.ExitCode(err))
	}
	return err
}

// check refuses arguments that fit nothing, and makes sure that something can be mounted on the mount point.
func (m *Mount) check(ctx context.Context) error {
	if err := m.checkPoint(ctx); err != nil {
		return err
	}
	if m.Options.Frozen && (m.Checkpoints.On || m.KV.On || m.Dataset.Strict || m.Dataset.CacheDir != "" || address.IsRemote(m.Source)) {
		return cli.Mistakef("--frozen is for a directory that is mounted as a dataset, as it is: give no address, --cache-dir or --strict with it")
	}
	if err := m.Checkpoints.check(m); err != nil {
		return err
	}
	return m.KV.check(m)
}

// checkPoint makes sure that something can be mounted on the mount point, and that neither it nor the source lies in a mount
// whose daemon is stuck.
func (m *Mount) checkPoint(ctx context.Context) error {
	place, err := mountpoint.Locate(m.Point)
	if err != nil {
		return err
	}
	m.Point = place.Path
	if place.HBMFS() {
		if err := m.clearDead(ctx, place); err != nil {
			return err
		}
	}
	if os.Getenv(ready.Env) == "" { // the command that started this one has asked
		mounts, err := onmount.Mounts([]string{m.Source, m.Point})
		if err == nil {
			err = onmount.Await(ctx, mounts, m.Stderr)
		}
		if err != nil {
			return err
		}
	}
	m.notes, err = checkPoint(m.Point, m.Source)
	return err
}

// clearDead takes the mount away that is at the mount point, if its daemon is gone. Readers that still hold passthrough files
// go on.
func (m *Mount) clearDead(ctx context.Context, place *mountpoint.Location) error {
	switch a := onmount.Ask(ctx, place.Path); {
	case ctx.Err() != nil:
		return ctx.Err()
	case a.State == aside.Silent:
		daemon, err := mountpoint.FindDaemon(place.On)
		if err != nil && !errors.Is(err, mountpoint.ErrUntold) {
			return err
		}
		if daemon != nil {
			defer daemon.Close()
		}
		return fmt.Errorf("%s is an hbmfs mount already, and %s: hbmfs umount --force %s takes it away", m.Point, onmount.Silence(place, daemon), m.Point)
	case a.State != aside.Dead:
		return fmt.Errorf("%s is an hbmfs mount already: hbmfs status %s shows its source, and hbmfs umount takes it away", m.Point, m.Point)
	}
	if err := mountpoint.Detach(m.Point); err != nil {
		return fmt.Errorf("take the dead mount at %s away: %w", m.Point, err)
	}
	fmt.Fprintf(m.Stderr, "hbmfs: took away a mount at %s whose daemon was gone; the end of its log says why (%s, unless it was told another)\n", m.Point, defaultLog())
	return nil
}

// checkVolume refuses a source and flags that are of no use for a volume that programs write to. The text `what` names the written data,
// and owners says why files have their owners.
func (m *Mount) checkVolume(volume, what, owners string) error {
	if address.IsRemote(m.Source) {
		return cli.Mistakef("%s: %s is an address, and %s written to a local disk: name a directory", volume, m.Source, what)
	}
	if m.Options.Layout.Format != "" || len(m.Select) > 0 || m.Dataset.CacheDir != "" || m.Options.UID != nil || m.Options.GID != nil {
		return cli.Mistakef("%s takes no --format, --select, --cache-dir, --uid and --gid: %s", volume, owners)
	}
	return checkApart(volume, m.Source, m.Point)
}
