package mapped

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// Shared is windows that several readers of one process have in common, one reader for each GPU as a rule.
type Shared struct {
	windows *Windows

	mu      sync.Mutex // guards what follows
	joined  int
	cu      *driver.CUDA
	devices map[int32]driver.Handle // whose contexts are kept: what one of them registered stays when its Reader goes
	closed  bool
	ended   bool // all was given back, or could not be
}

// NewShared makes room for so many readers. window is the bytes that are registered at a time, pinned those of all.
func NewShared(readers int, window, pinned int64) (*Shared, error) {
	const most = 64
	if readers < 1 || readers > most {
		return nil, fmt.Errorf("registrations are shared by 1 to %d readers, not %d", most, readers)
	}
	return &Shared{windows: newWindows(window, pinned, readers), devices: map[int32]driver.Handle{}}, nil
}

// join counts a Reader in.
func (s *Shared) join(cu *driver.CUDA, dev int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.joined == s.windows.readers {
		return fmt.Errorf("share registrations: %w: they were closed, or are for %d readers and have as many", source.ErrUnavailable, s.windows.readers)
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
func (s *Shared) PinnedBytes() int64 { return s.windows.pinned() }

// Close ends the sharing. It is an error while a reader uses it, and [crew.ErrUnderWay] where a thread does not end: then Close is
// to be called again.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.joined > 0 {
		return fmt.Errorf("close shared registrations: %d readers use them: close these first", s.joined)
	}
	if s.ended {
		return nil
	}
	s.closed = true
	if err := s.windows.fill.close(); err != nil {
		return fmt.Errorf("close shared registrations: %w; close them again then", err)
	}
	s.ended = true
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
	if len(s.windows.files) == 0 {
		return nil
	}
	c, err := crew.New(crew.Options{CUDA: s.cu, Context: kept, Threads: 1, SlotSize: driver.PageSize})
	if err != nil {
		return err
	}
	return errors.Join(c.Do(context.Background(), s.windows.discardAll), c.Close())
}
