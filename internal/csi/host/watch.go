package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/csi/mounts"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// watch waits for the end of a daemon, and starts the volume's next one while it is used.
func (v *nodeVolume) watch(d *daemon) {
	h := v.host
	select {
	case <-d.done:
	case <-h.ctx.Done():
		return
	}
	if err := v.acquire(h.ctx); err != nil {
		return
	}
	var again bool
	if v.daemon == d { // else it was ended
		v.daemon, v.died = nil, d
		if again = h.wanted(v); again {
			went, _ := v.takeOver(h.ctx) // called off: revive sees whether somebody is left
			again = !went
		}
	}
	v.unlock()
	if !again {
		return
	}
	soon := 0
	if time.Since(d.began) < stable {
		soon = 1
	}
	v.revive(h.ctx, soon)
}

// stable is how long a daemon must have lived for the next one to be started at once.
const stable = 10 * time.Second

// revive starts a daemon until one is up, or nobody wants it any more. Attempts come further and further apart.
func (v *nodeVolume) revive(ctx context.Context, attempt int) {
	for ; ; attempt++ {
		if pause.For(ctx, waitBefore(attempt)) != nil {
			return
		}
		if err := v.acquire(ctx); err != nil {
			return
		}
		wanted, err := v.host.wanted(v) && !v.daemon.alive(), error(nil)
		if wanted {
			err = v.start(ctx)
		}
		v.unlock()
		if err == nil || ctx.Err() != nil {
			return
		}
		v.host.log.Error("cannot start a daemon again", "volume", v.key, "attempt", attempt+1, "error", err)
	}
}

// waitBefore is how long to wait before an attempt: not before the first, and half a minute at most.
func waitBefore(attempt int) time.Duration {
	if attempt == 0 {
		return 0
	}
	return min(200*time.Millisecond<<min(attempt-1, 10), 30*time.Second)
}

// Start goes on with the volumes of earlier hosts. It takes over daemons that live, starts those of used volumes that do
// not, and removes volumes that nobody uses. It returns when it knows all volumes; the rest goes on in the background.
func (h *Host) Start() error {
	h.warnOfTheDisk()
	entries, err := os.ReadDir(filepath.Join(h.opt.StateDir, "volumes"))
	if err != nil {
		return fmt.Errorf("read the state directory: %w", err)
	}
	running, err := h.findDaemons()
	if err != nil {
		return err
	}
	var known []*nodeVolume
	h.mu.Lock()
	for _, e := range entries {
		v := newNodeVolume(h, e.Name(), record{})
		rec, err := load(v.dir())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			h.log.Error("a volume is forgotten whose record cannot be read", "volume", v.key, "error", err)
		}
		v.rec, v.served = rec, true // an empty one has no users
		h.volumes[v.key] = v
		v.lock <- struct{}{} // until it is recovered
		known = append(known, v)
	}
	h.mu.Unlock()
	for _, v := range known {
		h.work.Go(func() {
			again := v.recover(running[v.mount()])
			v.unlock()
			if v.lingers() {
				h.work.Go(v.linger)
			}
			if again {
				v.revive(h.ctx, 0)
			}
		})
	}
	return nil
}

// recover goes on with one volume, whose lock is held. It reports whether a daemon has to be started.
func (v *nodeVolume) recover(pids []int) (start bool) {
	log := v.host.log.With("volume", v.key)
	if err := v.forget(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error("cannot write the record", "error", err)
	}
	used := v.host.wanted(v)
	if used {
		if went, _ := v.takeOver(v.host.ctx); went { // called off: revive sees whether somebody is left
			return false
		}
	}
	for _, pid := range pids { // half started, or of a mount that is gone
		if d := v.host.open(pid, v.mount()); d != nil {
			v.kill(d)
		}
	}
	if used {
		return true
	}
	if err := v.stop(); err != nil {
		log.Error("cannot take the mount of an unused volume away", "error", err)
		return false
	}
	v.host.mu.Lock()
	defer v.host.mu.Unlock()
	if v.rec.over() {
		delete(v.host.volumes, v.key)
		if err := v.remove(); err != nil {
			log.Error("cannot remove an unused volume", "error", err)
		}
	}
	return false
}

// open names a process that serves a mount, nil where it does not any more.
func (h *Host) open(pid int, point string) *daemon {
	if pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	if mountPointOf(fmt.Sprintf("/proc/%d", pid)) != point { // it has ended, and the number is another's
		_ = unix.Close(fd)
		return nil
	}
	return h.newDaemon(pid, fd, nil)
}

// takeOver adopts the daemon that serves the mount, if one does: an earlier host's, or the one that goes on after another. The
// lock must be held.
func (v *nodeVolume) takeOver(ctx context.Context) (went bool, err error) {
	ctx, end := v.begin(ctx)
	defer end()
	d := v.serving(ctx)
	if d == nil {
		return false, ctx.Err()
	}
	if err := v.adopt(d); err != nil {
		v.kill(d)
		return false, nil //nolint:nilerr // it did not go: another is started
	}
	v.died = nil
	v.host.log.Info("took over a daemon", "volume", v.key, "pid", d.pid)
	return true, nil
}

// keeperTime is how long a mount without a daemon may have one that goes on with it: a keeper gives up before.
const keeperTime = handover.HoldTime + 10*time.Second

// serving returns the daemon that serves the mount, nil where it is dead. Where its keeper just starts another one, serving waits.
func (v *nodeVolume) serving(ctx context.Context) *daemon {
	ctx, cancel := context.WithTimeout(ctx, keeperTime)
	defer cancel()
	for ; ctx.Err() == nil; _ = pause.For(ctx, pause.Look) { // the keeper has the next one soon
		if _, err := v.device(); err != nil {
			return nil
		}
		dead, silent := v.dead(ctx)
		if dead {
			return nil
		}
		if d := v.host.open(v.server(ctx, silent), v.mount()); d != nil {
			return d
		}
	}
	return nil
}

// dead tells whether the mount has neither a daemon nor anybody who holds it. A daemon that gives no answer is there, stopped or
// stuck, or its keeper starts another.
func (v *nodeVolume) dead(ctx context.Context) (dead, silent bool) {
	answer := make(chan bool, 1)
	go func() { answer <- mounts.Dead(v.mount()) }() // ends with the answer
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.After(askTime)
	for {
		select {
		case dead = <-answer:
			return dead, false
		case <-tick.C: // readers wait also where only the copy of a keeper's descriptors is left
			keepers, err := keepersBelow(v.dir())
			found, findErr := v.host.findDaemons()
			if err == nil && findErr == nil && len(keepers)+len(found[v.mount()]) == 0 {
				return true, false
			}
		case <-late:
			return false, true
		case <-ctx.Done():
			return false, true
		}
	}
}

// server returns the process that serves the mount, 0 where it is not known. During an upgrade there are two with its name.
func (v *nodeVolume) server(ctx context.Context, silent bool) (pid int) {
	found, err := v.host.findDaemons()
	switch pids := found[v.mount()]; {
	case err != nil:
		v.host.log.Error("cannot look for daemons", "error", err)
	case len(pids) == 1:
		return pids[0]
	case len(pids) > 1 && !silent:
		var t told
		if text, err := v.ask(ctx, "status"); err == nil && json.Unmarshal(text, &t) == nil {
			return t.PID
		}
	}
	return 0
}

// again is after how long pods are looked through once more, for those that were being started the first time.
const again = 10 * time.Second

// replaceInPods replaces dead mounts in pods by the living one. The lock must be held, and the daemon be there.
func (v *nodeVolume) replaceInPods() {
	v.replaceDead()
	v.host.work.Go(func() {
		if pause.For(v.host.ctx, again) != nil || v.acquire(v.host.ctx) != nil {
			return // the next host looks again
		}
		defer v.unlock()
		if v.daemon.alive() {
			v.replaceDead()
		}
	})
}

// replaceDead replaces the volume's dead mounts wherever they are seen. The lock must be held.
func (v *nodeVolume) replaceDead() {
	h := v.host
	var writable bool
	v.with(func(r *record) { writable = r.Spec.Written() })
	device, err := v.device()
	var namespaces []mounts.Namespace
	if err == nil {
		namespaces, err = mounts.Find(v.name(), device, v.mount())
	}
	if err != nil {
		h.log.Error("cannot look for dead mounts in pods", "volume", v.key, "error", err)
		return
	}
	for _, ns := range namespaces {
		n, err := mounts.ReplaceIn(h.ctx, ns, v.mount(), device, writable, h.opt.Helper)
		if err != nil {
			h.log.Error("cannot replace a dead mount in a pod", "volume", v.key, "pid", ns.PID, "error", err)
		}
		h.mu.Lock()
		h.counts.replaced += int64(n)
		h.mu.Unlock()
	}
}
