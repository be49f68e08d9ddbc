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

	mu       sync.Mutex // guards what follows
	attached int
	cu       *driver.CUDA
	devices  map[int32]driver.Handle // whose contexts are retained: windows that one of them registered stay when its Reader goes
	closed   bool
	ended    bool // Close has given back all that it could
}

// NewShared makes room for so many readers. window is the bytes that are registered at a time, pinned those of all.
func NewShared(readers int, window, pinned int64) (*Shared, error) {
	const most = 64
	if readers < 1 || readers > most {
		return nil, fmt.Errorf("registrations are shared by 1 to %d readers, not %d", most, readers)
	}
	return &Shared{windows: newWindows(window, pinned, readers), devices: map[int32]driver.Handle{}}, nil
}

// attach counts a Reader in.
func (s *Shared) attach(cu *driver.CUDA, dev int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.attached == s.windows.readers {
		return fmt.Errorf("share registrations: %w: they were closed, or are for %d readers and have as many", source.ErrUnavailable, s.windows.readers)
	}
	if s.devices[dev] == 0 {
		retained, err := cu.RetainPrimary(dev)
		if err != nil {
			return err
		}
		s.cu, s.devices[dev] = cu, retained
	}
	s.attached++
	return nil
}

func (s *Shared) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached--
}

// PinnedBytes is the host memory that is registered for files now.
func (s *Shared) PinnedBytes() int64 { return s.windows.pinned() }

// Close ends the sharing. It is an error while a reader uses it, and [crew.ErrUnderWay] where a thread does not end: then Close is
// to be called again.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached > 0 {
		return fmt.Errorf("close shared registrations: %d readers use them: close these first", s.attached)
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
	for dev, retained := range s.devices {
		errs = append(errs, s.discard(retained), s.cu.ReleasePrimary(dev))
	}
	return errors.Join(errs...)
}

// discard gives up the windows of Files that could not be closed, on a thread with a context of its own.
func (s *Shared) discard(retained driver.Handle) error {
	if len(s.windows.files) == 0 {
		return nil
	}
	c, err := crew.New(crew.Options{CUDA: s.cu, Context: retained, Threads: 1, SlotSize: driver.PageSize})
	if err != nil {
		return err
	}
	return errors.Join(c.Do(context.Background(), s.windows.discardAll), c.Close())
}
