package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/mounts"
	"github.com/hbmfs/hbmfs/internal/csi/volume"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
)

// nodeVolume is a volume that is used on this node.
type nodeVolume struct {
	host *Host
	key  string
	lock chan struct{} // of the daemon and the mounts: see acquire

	rec    record             // guarded by the host's mu
	saved  []byte             // the record as it is on disk; guarded by mu
	cancel context.CancelFunc // of the wait for a daemon, guarded by mu
	served bool               // a daemon has been up, though another may just take its place; guarded by mu
	failed string             // why the last start failed, "" when it did not; guarded by mu

	showing sync.Mutex // held while a daemon that comes up is shown to a pod, and while a use is hidden

	daemon *daemon // guarded by lock
	died   *daemon // the one before, until another goes on or is started; guarded by lock
}

func newNodeVolume(h *Host, key string, rec record) *nodeVolume {
	return &nodeVolume{host: h, key: key, lock: make(chan struct{}, 1), rec: rec}
}

func (v *nodeVolume) dir() string             { return filepath.Join(v.host.opt.StateDir, "volumes", v.key) }
func (v *nodeVolume) path(name string) string { return filepath.Join(v.dir(), name) }
func (v *nodeVolume) mount() string           { return v.path("mnt") }
func (v *nodeVolume) unlock()                 { <-v.lock }
func (v *nodeVolume) with(do func(*record))   { v.host.mu.Lock(); defer v.host.mu.Unlock(); do(&v.rec) }
func (v *nodeVolume) update(do func(*record)) error {
	v.host.mu.Lock()
	defer v.host.mu.Unlock()
	return v.change(do)
}

// acquire takes the lock of the volume. Waiting for it honours ctx.
func (v *nodeVolume) acquire(ctx context.Context) error {
	select {
	case v.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// serve makes sure that the volume's daemon runs with these secrets. The lock must be held.
func (v *nodeVolume) serve(ctx context.Context, w volume.Want) error {
	if file := w.FederatedFile(v.path(tokenName)); file != nil {
		w.Credentials = file
	}
	for name, content := range map[string][]byte{credentialsName: w.Credentials, tokenName: w.Token} {
		if content == nil {
			continue
		}
		if old, err := os.ReadFile(v.path(name)); err == nil && bytes.Equal(old, content) {
			continue
		}
		if err := replaceFile(v.path(name), content); err != nil {
			return err
		}
	}
	if v.daemon.alive() {
		if _, err := v.device(); err == nil {
			return nil
		}
		v.kill(v.daemon) // somebody took its mount away
	}
	if went, err := v.takeOver(ctx); went || err != nil {
		return err
	}
	return v.start(ctx)
}

// begin says that a daemon is waited for, until end. That can be called off: see acquireToEnd.
func (v *nodeVolume) begin(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	v.host.mu.Lock()
	defer v.host.mu.Unlock()
	v.cancel = cancel
	return ctx, func() {
		cancel()
		v.host.mu.Lock()
		defer v.host.mu.Unlock()
		v.cancel = nil
	}
}

// Files in the directory of a volume: the rights that its daemon reads, and its log.
const (
	credentialsName = "credentials"
	tokenName       = "token"
	logName         = "log"
)

// start removes the mount of a dead daemon, starts a new one, and shows its mount wherever the old one was seen. The lock
// must be held.
func (v *nodeVolume) start(ctx context.Context) (err error) {
	ctx, end := v.begin(ctx)
	defer end()
	defer func() {
		v.host.mu.Lock()
		v.failed = ""
		if err != nil {
			v.failed = err.Error()
			v.host.counts.failedStarts++
		}
		v.host.mu.Unlock()
	}()
	for range resumesMax {
		v.endOthers()
		went, again := v.resume(ctx)
		if went {
			return nil
		}
		if !again || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return status.Error(codes.Unavailable, "the start of the daemon was called off")
	}
	v.countStart()
	if err := v.clear(); err != nil {
		return err
	}
	d, err := v.host.launch(ctx, v, nil)
	if err != nil {
		return err
	}
	if err := v.adopt(d); err != nil {
		v.kill(d)
		return err
	}
	return nil
}

// endOthers ends processes of the mount that do not serve it, or hold it for nobody. The lock must be held.
func (v *nodeVolume) endOthers() {
	for range 2 { // a daemon may have started a keeper meanwhile
		keepers, err := keepersBelow(v.dir())
		for _, pid := range keepers {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		found, findErr := v.host.findDaemons()
		for _, pid := range found[v.mount()] {
			if d := v.host.open(pid, v.mount()); d != nil {
				d.kill()
			}
		}
		if err = errors.Join(err, findErr); err != nil {
			v.host.log.Error("cannot look for daemons", "error", err)
		}
	}
}

// resumesMax is how many daemons may die while they go on with a mount, as those of a keeper.
const resumesMax = 3

// resume has a new daemon go on with the mount that died with its keeper, and tells whether it does, and else whether another one could. The
// lock must be held.
func (v *nodeVolume) resume(ctx context.Context) (went, again bool) {
	ctx, cancel := context.WithTimeout(ctx, keeperTime)
	defer cancel()
	c := v.copy(ctx)
	if c == nil {
		return false, false
	}
	defer c.Close()
	d, err := v.host.launch(ctx, v, c)
	if err == nil {
		err = v.adopt(d)
	}
	if err != nil {
		v.host.log.Error("no daemon goes on with the mount of a volume", "volume", v.key, "error", err)
		return false, true
	}
	v.died = nil
	v.host.log.Info("another daemon goes on with a mount", "volume", v.key, "pid", d.pid)
	return true, false
}

// copy returns the descriptors of the mount's keeper, nil where the mount is dead. A plugin may have to bring
// it.
func (v *nodeVolume) copy(ctx context.Context) handover.Copy {
	if _, err := v.device(); err != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the answer
		mounts.Dead(v.mount())
		cancel() // a mount that somebody holds gives no answer
	}()
	c := v.host.held.await(ctx, v.key, handover.HoldTime)
	if !c.Connected() {
		c.Close()
		return nil
	}
	return c
}

// countStart says that a daemon is started, and that one has died if it has. The lock must be held.
func (v *nodeVolume) countStart() {
	h, d := v.host, v.died
	v.died = nil
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts.starts++
	if d != nil {
		h.counts.deaths++
		h.log.Error("a daemon died and another is started", "volume", v.key, "pid", d.pid, "seconds", time.Since(d.began).Seconds(), "said", v.lastWords(d))
	}
}

// kill ends a daemon and its mount, in this order. A thread of the daemon may wait for an answer of the daemon, out of
// reach of the signal until there can be none.
func (v *nodeVolume) kill(d *daemon) {
	d.signal(syscall.SIGKILL)
	v.host.held.end(v.key)
	if err := mounts.Abort(v.mount()); err != nil {
		v.host.log.Error("cannot take the mount of a daemon away", "volume", v.key, "error", err)
	}
	d.kill()
}

// clear removes the mount of a daemon that is gone, so that the next one is not stacked upon it. The copies that pods see
// stay until a new mount replaces them.
func (v *nodeVolume) clear() error {
	v.host.held.end(v.key)
	if err := mounts.Abort(v.mount()); err != nil {
		return err
	}
	if err := os.Mkdir(v.mount(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the mount point: %w", err)
	}
	return nil
}

// name is the source of this volume's mounts in the mount table, those of dead daemons as well. Device numbers would not
// do: the number of a mount that nobody sees any more is given to another one.
func (v *nodeVolume) name() string { return v.host.prefix + v.key }

// device is that of the mount that the daemon made.
func (v *nodeVolume) device() (string, error) {
	top, err := mounts.Top(v.mount())
	if err != nil {
		return "", err
	}
	if top == nil || top.FSType != mounts.FSType || top.Source != v.name() {
		return "", fmt.Errorf("the mount of the volume at %s is gone", v.mount())
	}
	return mounts.Device(top), nil
}

// adopt takes a daemon whose mount is up, shows it to the pods, and watches it. The lock must be held.
func (v *nodeVolume) adopt(d *daemon) error {
	if _, err := v.device(); err != nil {
		return err
	}
	v.daemon = d
	v.with(func(*record) { v.served = true })
	v.host.held.serve(v.key, d)
	v.host.work.Go(func() { v.watch(d) })
	v.host.work.Go(func() { v.keepCopy(d) })
	v.showAgain()
	v.replaceInPods()
	return nil
}

// showAgain shows the volume to its pods. The lock must be held.
func (v *nodeVolume) showAgain() {
	var targets []string
	v.with(func(r *record) { targets = slices.Sorted(maps.Keys(r.Published)) })
	for _, target := range targets {
		if err := v.showStill(target); err != nil {
			v.host.log.Error("cannot show the volume to a pod again", "volume", v.key, "target", target, "error", err)
		}
	}
}

// showStill shows the volume to a pod, unless that has left meanwhile: see unuse.
func (v *nodeVolume) showStill(target string) error {
	v.showing.Lock()
	defer v.showing.Unlock()
	if !v.has(target) {
		return nil
	}
	return v.show(target)
}

// has tells whether a target still shows the volume, or waits for that.
func (v *nodeVolume) has(target string) (is bool) {
	v.with(func(r *record) { _, is = r.Published[target] })
	return is
}

// show makes the volume seen at a target. The lock must be held, and the daemon be there.
func (v *nodeVolume) show(target string) error {
	device, err := v.device()
	if err != nil {
		return err
	}
	top, err := mounts.Top(target)
	if err != nil {
		return err
	}
	if top != nil && top.FSType != mounts.FSType {
		return status.Errorf(codes.FailedPrecondition, "target path %s: %v (%s): unmount it", target, mounts.ErrForeign, top.FSType)
	}
	if top != nil && mounts.Device(top) == device {
		return nil
	}
	if top == nil {
		if err := makeTarget(target); err != nil {
			return err
		}
	}
	writable := false
	v.with(func(r *record) {
		p, ok := r.Published[target]
		writable = ok && r.Spec.Written() && !p.ReadOnly
	})
	tree, err := mounts.Clone(v.mount(), "", device, writable)
	if err != nil {
		return err
	}
	defer tree.Close()
	if top == nil {
		return tree.Attach(target)
	}
	return tree.Replace(target)
}

// stop ends the daemon of a volume that nobody uses. The lock must be held.
func (v *nodeVolume) stop() error {
	v.host.held.end(v.key)
	if err := mounts.Abort(v.mount()); err != nil {
		v.host.held.serve(v.key, v.daemon) // it goes on
		return err
	}
	limit := killTime
	v.with(func(r *record) {
		if r.Spec.Written() {
			limit = dropTime
		}
	})
	for d := v.daemon; ; {
		if d.alive() && !d.within(limit) { // which ends with its filesystem
			d.kill()
		}
		if d.alive() { // it waits for a disk that is dead
			break
		}
		if d = v.successor(); d == nil {
			break
		}
	}
	v.daemon = nil
	v.with(func(*record) { v.served = false })
	v.clean()
	return nil
}

// successor finds a process that goes on with the mount, although the mount has ended. A keeper may have begun to start it when its daemon died,
// and where the source hangs, the process never sees that its mount is gone. successor returns nil when the keeper has ended, too.
func (v *nodeVolume) successor() *daemon {
	for end := time.Now().Add(killTime); ; time.Sleep(5 * time.Millisecond) {
		keepers, err := keepersBelow(v.dir()) // before daemons: a keeper may end once it has started one
		found, findErr := v.host.findDaemons()
		for _, pid := range found[v.mount()] {
			if d := v.host.open(pid, v.mount()); d != nil {
				return d
			}
		}
		if len(keepers) == 0 || errors.Join(err, findErr) != nil || time.Now().After(end) {
			return nil
		}
	}
}

// remove removes the directory of the volume, whose mount is gone. The host's mu must be held.
func (v *nodeVolume) remove() error {
	v.host.held.end(v.key) // a plugin may just have brought it
	if err := mounts.RemoveDir(v.mount()); err != nil {
		return err
	}
	for _, name := range []string{credentialsName, tokenName, logName, logName + ".old", recordName} {
		for _, suffix := range []string{".new", ""} {
			if err := os.Remove(v.path(name + suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return mounts.RemoveDir(v.dir())
}
