package cufile

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
)

// Shared is registrations that several Readers of one process have in common, one Reader for each GPU as a rule: a
// window of a file is registered once, and all of them read from it. Without it each Reader registers for itself, which
// costs the time again, and pins memory that counts again.
//
//	s, err := cufile.NewShared(4, cufile.Options{})
//	for gpu := range 4 {
//		r, err := cufile.New(ctx, cufile.Options{Device: gpu, Readers: 4, Share: s})
//	}
//	// close the Readers, then s
type Shared struct {
	maps *mappings

	mu      sync.Mutex // guards what follows
	joined  int
	cu      *driver.CUDA
	devices map[int32]driver.Handle // whose contexts are kept: what one of them registered stays when its Reader goes
	closed  bool
}

// NewShared makes room for so many Readers. Of o it takes Window and Pinned, which is for all of them.
func NewShared(readers int, o Options) (*Shared, error) {
	const most = 64
	if readers < 1 || readers > most {
		return nil, fmt.Errorf("registrations are shared by 1 to %d readers, not %d", most, readers)
	}
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	return &Shared{maps: newMappings(o.Window, o.Pinned, readers), devices: map[int32]driver.Handle{}}, nil
}

// join counts a Reader in.
func (s *Shared) join(cu *driver.CUDA, dev int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.joined == s.maps.readers {
		return fmt.Errorf("share registrations: %w: they were closed, or are for %d readers and have as many", ErrUnavailable, s.maps.readers)
	}
	if s.devices[dev] == 0 {
		kept, err := cu.RetainPrimary(dev)
		if err != nil {
			return err
		}
		s.cu, s.devices[dev] = cu, kept
	}
	s.joined++
	return nil
}

func (s *Shared) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined--
}

// PinnedBytes is the host memory that is registered for files now.
func (s *Shared) PinnedBytes() int64 { return s.maps.pinned() }

// Close ends the sharing. It is an error while a Reader uses it.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.joined > 0 {
		return fmt.Errorf("close shared registrations: %d readers use them: close these first", s.joined)
	}
	if s.closed {
		return nil
	}
	s.closed = true
	s.maps.fill.close()
	if s.cu == nil {
		return nil
	}
	var errs []error
	for dev, kept := range s.devices {
		errs = append(errs, s.discard(kept), s.cu.ReleasePrimary(dev))
	}
	return errors.Join(errs...)
}

// discard gives up what is left of Files that could not be closed, on a thread with a context of its own.
func (s *Shared) discard(kept driver.Handle) error {
	if len(s.maps.files) == 0 {
		return nil
	}
	c, err := crew.New(crew.Options{CUDA: s.cu, Context: kept, Threads: 1, SlotSize: driver.PageSize})
	if err != nil {
		return err
	}
	return errors.Join(c.Do(context.Background(), s.maps.discardAll), c.Close())
}
