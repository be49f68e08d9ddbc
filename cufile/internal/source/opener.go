package source

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// Opener opens files for one reader.
type Opener struct {
	client      string // the reader's name in a mount's status
	number      uint32 // by which daemons know all connections of the reader for one
	descriptors *Descriptors
	ids         atomic.Uint64

	mu     sync.Mutex // guards the fields below, and users of each mount
	mounts map[control.Epoch]*mount
}

// NewOpener makes an opener, whose files share descriptors.
func NewOpener(client string, h *Descriptors) *Opener {
	return &Opener{client: client, number: rand.Uint32(), descriptors: h, mounts: map[control.Epoch]*mount{}}
}

// Open opens a file of a mount by the control channel, and any other by its name. Where the control channel cannot be had, or
// has no connection left, the file is read through the mount, and note says so. That is slower, and neither mapped nor direct.
func (o *Opener) Open(ctx context.Context, name string) (s File, note string, err error) {
	m, err := o.openMounted(ctx, name)
	switch {
	case err == nil:
		return m, "", nil
	case errors.Is(err, control.ErrNoSocket), errors.Is(err, control.ErrVersion), errors.Is(err, unix.EAGAIN):
		note = "read through the mount: " + err.Error()
	case !errors.Is(err, control.ErrNotHBMFS):
		return nil, "", err
	}
	p, err := OpenPlain(name, o.ids.Add(1))
	if err != nil {
		return nil, "", err
	}
	p.Backing(nil).Inline = note != ""
	return p, note, nil
}

// openMounted opens a file of a mount. A file that is in no mount gives control.ErrNotHBMFS.
func (o *Opener) openMounted(ctx context.Context, name string) (_ *mountedFile, err error) {
	fd, err := OpenFile(name)
	if err != nil {
		return nil, err
	}
	m := &mountedFile{file: os.NewFile(uintptr(fd), name), opener: o, objects: map[uint64]*Backing{}, lent: map[*Backing]*control.Client{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	info, err := control.Info(m.file)
	if err != nil {
		return nil, err
	}
	m.length, m.info = info.Size, info
	if m.mount, err = o.mount(ctx, name, info.Epoch); err != nil {
		return nil, err
	}
	if !m.cached() {
		m.notices = m.mount.listen(ctx, name)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s again: %w", name, err)
	}
	if m.inline, err = NewBacking(own, name, o.ids.Add(1)); err != nil {
		return nil, err
	}
	m.inline.Inline = true
	m.many.Store(info.Runs > fewRuns)
	_, err = m.few(ctx)
	return m, err
}
