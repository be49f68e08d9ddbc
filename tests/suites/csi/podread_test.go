package csi_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// The ways in which a pod reads that are not read(2).

func sum(p []byte) [sha256.Size]byte { return sha256.Sum256(p) }

// mapped reads a file through a mapping.
func (p *program) mapped(path string, f file) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // opened for reading
	m, err := unix.Mmap(int(in.Fd()), 0, f.Size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	return errors.Join(p.compare(f, m, 0, "a mapping"), unix.Munmap(m))
}

// control reads a file past the mount, from the backing files that the control channel gives, once after an ioctl and
// once after LOOKUP. It reads bytes that are not on this machine yet from the mount, and does not count them.
func (p *program) control(path string, f file, a *answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // opened for reading
	client, err := control.Dial(ctx, "/data", "pod")
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // all that it gave was read
	h := &held{file: in}
	defer h.release()
	if err := h.redeem(ctx, client); err != nil {
		return err
	}
	if a.Bytes, err = h.bypass(p, f); err != nil {
		return err
	}
	if err := client.Release(ctx, h.objects()...); err != nil {
		return err
	}
	for found, err := range client.Lookup(ctx, []string{f.Name}) {
		if err = errors.Join(err, lookupError(found)); err != nil {
			return err
		}
		got := make([]byte, f.Size)
		if _, err := found.ReadAt(got, 0); errors.Is(err, control.ErrInMount) {
			continue
		} else if err != nil {
			return err
		}
		if err := p.compare(f, got, 0, "LOOKUP"); err != nil {
			return err
		}
	}
	return nil
}

func lookupError(f *control.Found) error {
	if f == nil {
		return nil
	}
	return f.Err
}

// held is a reader's hold on a file: what goes on although the daemon dies.
type held struct {
	file     *os.File // opened in the mount
	mapping  []byte
	client   *control.Client
	extents  []control.Extent
	backings map[uint64]control.Backing
}

// hold opens a file, maps it, and redeems its backing files.
func hold(path string) (*held, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	h := &held{file: in}
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	if h.mapping, err = unix.Mmap(int(in.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	if h.client, err = control.Dial(ctx, filepath.Dir(path), "holder"); err != nil {
		return nil, err
	}
	return h, h.redeem(ctx, h.client)
}

// redeem asks for the extents of all of the file, and for the backing files that they lie in.
func (h *held) redeem(ctx context.Context, client *control.Client) error {
	h.backings = map[uint64]control.Backing{}
	for batch, err := range control.Batches(h.file, 0, math.MaxInt64, true) {
		if err != nil {
			return err
		}
		h.extents = append(h.extents, batch.Extents...)
		if len(batch.Objects()) == 0 {
			continue
		}
		backings, err := client.Redeem(ctx, batch.Ticket, batch.Objects())
		if err != nil {
			return err
		}
		for _, b := range backings {
			if h.backings[b.Object] = b; b.Err != nil {
				return b.Err
			}
		}
	}
	return nil
}

func (h *held) objects() (objects []uint64) {
	for o := range h.backings {
		objects = append(objects, o)
	}
	return objects
}

// bypass reads every extent from its backing file, and tells how many bytes came so.
func (h *held) bypass(p *program, f file) (n int64, err error) {
	for _, e := range h.extents {
		if e.Flags&control.ExtentMount != 0 {
			got := make([]byte, e.Length*e.Count)
			if _, err := h.file.ReadAt(got, e.Logical); err != nil {
				return n, err
			}
			if err := p.compare(f, got, int(e.Logical), "the mount, for what is not here yet,"); err != nil {
				return n, err
			}
			continue
		}
		for k := range e.Count {
			got := make([]byte, e.Length)
			if _, err := h.backings[e.Object].File.ReadAt(got, e.Offset+k*e.Stride); err != nil {
				return n, fmt.Errorf("read a backing file: %w", err)
			}
			if err := p.compare(f, got, int(e.Logical+k*e.Length), "a backing file"); err != nil {
				return n, err
			}
			n += e.Length
		}
	}
	return n, nil
}

// check reads what is held: the open file, its mapping, and the backing files.
func (h *held) check(p *program, f file) error {
	if h == nil {
		return errors.New("nothing is held")
	}
	if err := p.readOpen(h.file, f, func(int) {}); err != nil {
		return fmt.Errorf("the file that was open: %w", err)
	}
	if err := p.compare(f, h.mapping, 0, "the mapping that was there"); err != nil {
		return err
	}
	n, err := h.bypass(p, f)
	if err == nil && n != int64(f.Size) {
		err = fmt.Errorf("backing files gave %d of %d bytes", n, f.Size)
	}
	return err
}

// release closes the backing files.
func (h *held) release() {
	for _, b := range h.backings {
		if b.File != nil {
			_ = b.File.Close() // opened for reading
		}
	}
}
