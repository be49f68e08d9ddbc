package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/container"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// containers has the drafts of containers end with them. The zero value does nothing.
type containers struct {
	on     bool
	own    container.ID // of this daemon, whose drafts end with the mount
	ctx    context.Context
	stop   context.CancelFunc
	waits  sync.WaitGroup
	device func() (device, error) // of the mount
}

// openContainers makes sure that containers can be told apart.
func (v *Volume) openContainers() (err error) {
	c := &v.containers
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.device = sync.OnceValues(v.findDevice)
	if c.on = v.opt.Containers; !c.on {
		return nil
	}
	if c.own, err = container.Self(); err == nil {
		err = container.Visible()
	}
	if err != nil {
		return fmt.Errorf("have drafts end with their containers: %w", err)
	}
	return nil
}

// end ends all waiting.
func (c *containers) end() {
	if c.stop != nil {
		c.stop()
	}
	c.waits.Wait()
}

// of returns the container that a new draft of a request's caller belongs to, "" for none.
func (c *containers) of(h *fuse.InHeader) (container.ID, error) {
	if !c.on {
		return "", nil
	}
	if h.Pid == 0 {
		return "", fmt.Errorf("its process is in a PID namespace that this daemon does not see (hostPID: true): %w", unix.EPERM)
	}
	id, err := container.Of(int(h.Pid))
	if err != nil {
		return "", fmt.Errorf("nobody can tell when its container ends: %s: %w", err.Error(), unix.EPERM)
	}
	if id == c.own {
		return "", nil
	}
	return id, nil
}

// await has a draft end with its container. The caller may have the volume's mu.
func (d *mountedDraft) await() {
	c := &d.v.containers
	if d.home == "" || !c.on {
		return
	}
	c.waits.Go(func() { // ends with the container, or the volume
		err := d.watch.Await(c.ctx)
		if err == nil {
			err = d.abandon(c.ctx)
		}
		if err != nil && c.ctx.Err() == nil {
			d.v.opt.Log.Error("a draft stays until the mount ends, although its container may have ended", "draft", d.name, "error", err)
		}
	})
}

// settleTime bounds the time in which a container's end is found out. It is milliseconds where the CPUs are not very busy.
const settleTime = 10 * time.Second

// settled finds a draft by its name in the root. Where its container may just have ended, settled waits until the draft is gone, or
// stays. A pod that takes another's place shall not meet its drafts.
func (v *Volume) settled(name string) *mountedDraft {
	for end := time.Now().Add(settleTime); ; time.Sleep(settleTime / 1000) {
		d := v.draftShown(name)
		if d == nil || !d.watch.Doubtful() || time.Now().After(end) {
			return d
		}
	}
}

// abandon removes a draft whose container has ended. One that is just being published may become a checkpoint.
func (d *mountedDraft) abandon(ctx context.Context) error {
	for {
		d.publishSaid(ctx, d.publishAlone) // its writers have ended, too
		switch err := d.enter(open, dropped); {
		case err == nil:
			err = d.book.Drop()
			if err != nil {
				return errors.Join(err, d.enter(dropped, open))
			}
			d.v.opt.Log.Info("a draft is dropped", "draft", d.name, "user", d.owner.UID, "reason", "the container in which it was begun has ended")
			d.v.over(d)
			return nil
		case !errors.Is(err, unix.EBUSY):
			return nil // it was published, or dropped
		}
		if err := pause.For(ctx, 5*pause.Look); err != nil {
			return err
		}
	}
}

// device is the number of a filesystem.
type device struct{ major, minor uint32 }

// findDevice finds the mount's. No request is made of this daemon.
func (v *Volume) findDevice() (device, error) {
	major, minor, err := container.Device(v.inner.Point())
	return device{major, minor}, err
}

// mayWrite refuses a process of a container that has the mount read-only. The kernel lets it reach the control socket and ioctls all the
// same, also from another mount namespace.
func (v *Volume) mayWrite(pid int) error {
	if !v.containers.on {
		return nil
	}
	its, err := v.containers.device()
	writes := false
	if err == nil {
		writes, err = container.Writes(pid, its.major, its.minor)
	}
	switch {
	case err != nil: // its errno is not the answer
		return fmt.Errorf("nobody can tell whether process %d may write here: %s: %w", pid, err.Error(), unix.EPERM)
	case !writes:
		return fmt.Errorf("process %d has this volume mounted read-only: %w", pid, unix.EROFS)
	}
	return nil
}
