package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/csi/mounts"
	"github.com/hbmfs/hbmfs/internal/pause"
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
	mine := v.daemon == d
	if mine {
		v.daemon = nil
	}
	v.unlock()
	if !mine || h.unused(v) { // it was ended
		return
	}
	h.mu.Lock()
	h.counts.deaths++
	h.mu.Unlock()
	h.log.Error("a daemon died and is started again", "volume", v.key, "pid", d.pid, "seconds", time.Since(d.began).Seconds(), "said", v.lastWords(d))
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
		wanted, err := !v.host.unused(v) && !v.daemon.alive(), error(nil)
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
		v.rec = rec // an empty one has no users
		h.volumes[v.key] = v
		v.lock <- struct{}{} // until it is recovered
		known = append(known, v)
	}
	h.mu.Unlock()
	for _, v := range known {
		h.work.Go(func() {
			again := v.recover(running[v.mount()])
			v.unlock()
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
	used := !v.host.unused(v)
	if used && len(pids) == 1 && v.takeOver(pids[0]) {
		log.Info("took over a daemon", "pid", pids[0])
		return false
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
	if v.rec.idle() {
		delete(v.host.volumes, v.key)
		if err := v.remove(); err != nil {
			log.Error("cannot remove an unused volume", "error", err)
		}
	}
	return false
}

// open names a process that serves a mount, nil where it does not any more.
func (h *Host) open(pid int, point string) *daemon {
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

// takeOver adopts a daemon that an earlier host started, if its mount is up.
func (v *nodeVolume) takeOver(pid int) bool {
	if _, err := v.device(); err != nil || deadSoon(v.mount()) {
		return false
	}
	d := v.host.open(pid, v.mount())
	if d == nil {
		return false
	}
	if err := v.adopt(d); err != nil {
		v.kill(d)
		return false
	}
	return true
}

// deadSoon tells whether the daemon of a mount is gone. A daemon that gives no answer is there, and stopped or stuck.
func deadSoon(point string) bool {
	dead := make(chan bool, 1)
	go func() { dead <- mounts.Dead(point) }() // ends with the answer
	select {
	case d := <-dead:
		return d
	case <-time.After(askTime):
		return false
	}
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
		n, err := mounts.ReplaceIn(h.ctx, ns, v.mount(), device, h.opt.Helper)
		if err != nil {
			h.log.Error("cannot replace a dead mount in a pod", "volume", v.key, "pid", ns.PID, "error", err)
		}
		h.mu.Lock()
		h.counts.replaced += int64(n)
		h.mu.Unlock()
	}
}
