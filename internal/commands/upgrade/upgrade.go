// Package upgrade has running mounts go on with this program.
package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hbmfs/hbmfs/internal/commands/top"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// Result is the outcome for one mount.
type Result struct {
	Mount      string  `json:"mount"`
	Done       bool    `json:"done"`              // with check: it could be done
	Refused    string  `json:"refused,omitempty"` // why it was not; the program before goes on
	PID        int     `json:"pid,omitempty"`     // of the new daemon
	Version    string  `json:"version,omitempty"` // of the program that serves now
	Standstill float64 `json:"standstill_seconds,omitempty"`
}

// Request is an upgrade of mounts. Program is the file of this program, which looks at mounts in a process of its own.
type Request struct {
	Program  string
	Check    bool          // only ask whether it could be done
	All      bool          // all mounts that are seen from here
	Patience time.Duration // for the answer of the new daemon
}

// Run has this program serve the mounts at points, one after the other. refused says that one of them goes on as it was.
func (r *Request) Run(ctx context.Context, points []string) (results []Result, refused bool, err error) {
	if r.All {
		if points, err = top.Points(); err != nil {
			return nil, false, err
		}
	}
	results = []Result{}
	for _, point := range points {
		one := r.Mount(ctx, point)
		results, refused = append(results, one), refused || one.Refused != ""
	}
	return results, refused, ctx.Err()
}

// Mount has this program serve the mount at point.
func (r *Request) Mount(ctx context.Context, point string) Result {
	out := Result{Mount: point}
	place, err := mountpoint.Locate(point)
	if err == nil && !place.HBMFS() {
		err = errors.New("nothing of hbmfs is mounted there: findmnt -t fuse.hbmfs lists the mounts")
	}
	if err == nil {
		out.Mount = place.Path
		out.PID, err = r.ask(ctx, place.On)
	}
	if err != nil {
		out.Refused = err.Error()
		return out
	}
	if out.Done = true; r.Check {
		return out
	}
	if s := r.status(ctx, place.Path); s != nil {
		out.Version, out.Standstill = s.Version, s.Handover.LastStandstill
	}
	return out
}

// running is this program's file, also where another has taken its name.
const running = "/proc/self/exe"

// ask asks the keeper of a mount. It looks for it in /proc, since the daemon may be stuck.
func (r *Request) ask(ctx context.Context, mount *mountinfo.Info) (pid int, err error) {
	if keeper := mountpoint.FindKeeper(mount); keeper != 0 {
		return handover.Upgrade(ctx, keeper, running, r.Check)
	}
	s := r.status(ctx, mount.Mountpoint)
	keeper := 0
	if s == nil {
		keeper = mountpoint.FindKeeper(mount) // it may only have been starting
	}
	switch {
	case keeper != 0:
		return handover.Upgrade(ctx, keeper, running, r.Check)
	case s != nil && s.Handover.Holder == handover.ByKeeper: // the kernel does not tell its connections
		return handover.Upgrade(ctx, s.Handover.PID, running, r.Check)
	case s == nil:
		return 0, errors.New("no keeper of it is seen from here, and its daemon does not answer")
	case s.Handover.Holder == handover.BySystemd:
		return 0, errors.New("systemd holds it: systemctl kill --signal=KILL ends its daemon, and systemd starts the program of the unit, which goes on")
	case s.Handover.Holder != "":
		return 0, fmt.Errorf("another program holds it (pid %d)", s.Handover.PID)
	}
	return 0, fmt.Errorf("it ends with its daemon: %s", s.Handover.Why)
}

// status is the daemon's own status, nil where it does not answer.
func (r *Request) status(ctx context.Context, point string) *status.Status {
	asker := aside.Asker{Program: r.Program, Patience: r.Patience}
	a := asker.Ask(ctx, point, filepath.Join(point, mountpoint.ControlName, "status"))
	s := &status.Status{}
	if a.State != aside.OK || json.Unmarshal(a.Text, s) != nil {
		return nil
	}
	return s
}

// Write prints the outcomes, a line for each mount.
func (r *Request) Write(to io.Writer, results []Result) {
	for _, one := range results {
		switch {
		case one.Refused != "":
			fmt.Fprintf(to, "%s: not upgraded: %s\n", cli.Printable(one.Mount), one.Refused)
		case r.Check:
			fmt.Fprintf(to, "%s: this program can go on with it\n", cli.Printable(one.Mount))
		default:
			fmt.Fprintf(to, "%s: served by %s (pid %d), readers waited %.0f ms\n", cli.Printable(one.Mount), one.Version, one.PID, 1000*one.Standstill)
		}
	}
}
