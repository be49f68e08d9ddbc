package handover

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestFollowAKeeper asks a keeper before it has been told all, and hears of changes afterwards.
func TestFollowAKeeper(t *testing.T) {
	k := &keeper{store: Copy{}, listener: listen()}
	if k.listener < 0 {
		t.Skip("no keeper can be asked here")
	}
	ended := make(chan struct{})
	orders := make(chan func())
	go func() { // the keeper's only thread
		defer close(ended)
		for {
			fds := []unix.PollFd{{Fd: int32(k.listener), Events: unix.POLLIN}}
			for _, f := range k.followers {
				fds = append(fds, unix.PollFd{Fd: int32(f), Events: unix.POLLIN})
			}
			if n, _ := unix.Poll(fds, 5); n > 0 && fds[0].Revents != 0 {
				k.request()
			}
			for _, f := range fds[1:] {
				if f.Revents != 0 {
					k.unfollow(int(f.Fd))
				}
			}
			select {
			case do, ok := <-orders:
				if !ok {
					return
				}
				do()
			default:
			}
		}
	}()
	file, err := sealed(States, []byte("bytes"))
	must(t, err)
	defer func() { _ = file.Close() }()
	add := func(name string) func() {
		return func() {
			k.store[name], err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			must(t, err)
			k.changed()
		}
	}
	orders <- add(Device)
	if c, _, err := copyOf(os.Getpid()); err == nil {
		t.Errorf("a keeper that has not been told all gives %v", c)
	}
	orders <- func() { k.whole = true }
	f, err := Follow(os.Getpid())
	must(t, err)
	c, settled, err := f.Copy()
	must(t, err)
	if len(c) != 1 || settled != nil {
		t.Errorf("the copy is %v", c)
	}
	c.Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Changed(gone, 0); err == nil {
		t.Error("a change was heard of that there was not")
	}
	f.Close()
	f, err = Follow(os.Getpid())
	must(t, err)
	for i := range 2000 { // more than the connection takes, and nobody listens
		if i == 0 {
			orders <- add("another")
		} else if i%100 == 0 {
			orders <- func() { k.changed() }
		}
	}
	must(t, f.Changed(t.Context(), time.Millisecond))
	c, _, err = copyOf(os.Getpid())
	must(t, err)
	if len(c) != 2 {
		t.Errorf("after a change the copy is %v", c)
	}
	c.Close()
	orders <- func() { k.unfollow(k.followers[len(k.followers)-1]) }
	for err = nil; err == nil; {
		err = f.Changed(t.Context(), 0)
	}
	f.Close()
	close(orders)
	<-ended
	for name := range k.store {
		k.forget(name)
	}
	_ = unix.Close(k.listener)
}
