package host

import (
	"context"
	"time"

	"google.golang.org/grpc/status"
)

// unuse ends a use, and the volume with its last one. The use is hidden first: if the host is killed before it is
// dropped, the next call does both. A start that others wait for as well may have the volume's lock, and hang for as long
// as the source does. The use is ended beside it then: unuse hides a target again that adopt has shown meanwhile, and
// adopt shows none whose use has ended.
func (h *Host) unuse(ctx context.Context, v *nodeVolume, u use) error {
	locked, err := v.acquireToEnd(ctx, 1)
	if err != nil {
		return err
	}
	err = v.hide(u)
	if err == nil {
		err = v.update(func(r *record) {
			u.drop(r)
			if v.served { // else there is nothing to stay for
				r.mayLinger()
			}
		})
	}
	if err == nil && v.lingers() {
		h.work.Go(v.linger)
	}
	if locked {
		v.unlock()
	} else if err == nil {
		err = v.hide(u)
	}
	if err != nil || !h.unused(v) {
		return err
	}
	return h.end(ctx, v)
}

// hide ends how a use is seen.
func (v *nodeVolume) hide(u use) error {
	v.showing.Lock()
	defer v.showing.Unlock()
	return u.hide()
}

// endTick is how often a use that ends looks whether a start has the volume's lock.
const endTick = 100 * time.Millisecond

// acquireToEnd takes the lock of the volume, unless a start has it that others wait for than the ending uses. A start that
// nobody else waits for is called off.
func (v *nodeVolume) acquireToEnd(ctx context.Context, ending int) (locked bool, err error) {
	tick := time.NewTicker(endTick)
	defer tick.Stop()
	for {
		if v.othersWait(ending) {
			return false, nil
		}
		select {
		case v.lock <- struct{}{}:
			return true, nil
		case <-tick.C:
		case <-ctx.Done():
			return false, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// othersWait tells whether a start is under way for more than the ending uses. One for no others is called off.
func (v *nodeVolume) othersWait(ending int) bool {
	v.host.mu.Lock()
	defer v.host.mu.Unlock()
	if v.cancel == nil {
		return false
	}
	if len(v.rec.Published)+len(v.rec.Staged) > ending {
		return true
	}
	v.cancel()
	return false
}
