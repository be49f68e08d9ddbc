package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// Segment is a published segment, as its header describes it.
type Segment struct {
	File    string    `json:"file"`    // below the directory of segments
	Bytes   int64     `json:"bytes"`   //
	Source  string    `json:"source"`  // of the origin; cut, if it is very long, as the next two
	Object  string    `json:"object"`  // its name at the origin
	Version string    `json:"version"` // of the object
	Offset  int64     `json:"offset"`  // of the segment in the object
	Size    int64     `json:"size"`    // of the object
	Written time.Time `json:"written"`
	Damage  string    `json:"damage,omitempty"` // why it cannot be trusted, empty where it can as far as was looked
}

// Segments lists the published segments, in no order. With deep, the bytes of each segment are read and compared with its
// checksums.
func (s *Store) Segments(ctx context.Context, deep bool, each func(Segment) error) error {
	found, err := s.list()
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for _, p := range found {
		if err := ctx.Err(); err != nil {
			return err
		}
		g, err := s.inspect(ctx, p, deep, buf)
		if errors.Is(err, fs.ErrNotExist) { // evicted meanwhile
			continue
		}
		if err == nil {
			err = each(g)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) inspect(ctx context.Context, p published, deep bool, buf []byte) (Segment, error) {
	g := Segment{File: p.key.name(), Bytes: p.bytes, Written: time.Unix(0, p.mtime)}
	if p.err != nil {
		g.Damage = p.err.Error()
		return g, nil
	}
	fd, err := unix.Openat(s.fd, g.File, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if broken(err) {
		g.Damage = fmt.Sprintf("open: %v", err)
		return g, nil
	}
	if err != nil {
		return g, fmt.Errorf("open segment %s: %w", g.File, err)
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading: nothing is lost
	h, err := readHeader(fd, p.key)
	if err != nil {
		g.Damage = err.Error()
		return g, nil
	}
	g.Source, g.Object, g.Version, g.Offset, g.Size = h.source, h.name, h.version, h.offset, h.object
	if !deep {
		return g, nil
	}
	if err := h.verify(ctx, fd, buf); err != nil {
		if ctx.Err() != nil {
			return g, ctx.Err()
		}
		g.Damage = err.Error()
	}
	return g, nil
}

// Copy writes the bytes of a published segment.
func (s *Store) Copy(ctx context.Context, g Segment, to io.Writer) error {
	fd, err := unix.Openat(s.fd, g.File, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open segment %s: %w", g.File, err)
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading: nothing is lost
	size := min(g.Size-g.Offset, g.Bytes)
	buf := make([]byte, min(size, 1<<20))
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := buf[:min(int64(len(buf)), size-at)]
		if err := readFull(fd, p, at); err != nil {
			return err
		}
		if _, err := to.Write(p); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}

// broken tells errors of the disk, or of the filesystem's own structures, at one file: others may be well.
func broken(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG)
}

// verify compares an open segment with its checksums.
func (h *header) verify(ctx context.Context, fd int, buf []byte) error {
	for i, want := range h.sums {
		if err := ctx.Err(); err != nil {
			return err
		}
		got, err := sumOf(fd, h.size, i, buf)
		if err != nil {
			return err
		}
		if got != want {
			n := sumBlock(h.size)
			return fmt.Errorf("the %d bytes at %d have crc32c %08x, %08x was published", min(n, h.size-int64(i)*n), int64(i)*n, got, want)
		}
	}
	return nil
}

// Remove unlinks a published segment by its file. Readers that have it open read on.
func (s *Store) Remove(file string) error {
	k, ok := parseName(file)
	if !ok {
		return fmt.Errorf("%q is no segment's file", file)
	}
	if e := s.ledger.find(k); e != nil {
		s.ledger.dropPublished(e)
		if o, _ := s.ledger.look(e); o != nil {
			s.dir.Forget(o)
		}
	}
	if err := unix.Unlinkat(s.fd, file, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove segment %s: %w", file, err)
	}
	return nil
}

// Scrub verifies every segment again and again, at no more than rate bytes per second, until ctx ends. A damaged one is
// removed, and fetched again when it is read.
func (s *Store) Scrub(ctx context.Context, rate int64) {
	for ctx.Err() == nil {
		began, read := time.Now(), int64(0)
		err := s.Segments(ctx, true, func(g Segment) error {
			read += g.Bytes
			s.stats.scrubbed.Add(g.Bytes)
			if g.Damage != "" {
				s.stats.corrupt.Add(1)
				s.opt.Log.Error("a segment is damaged and was removed", "segment", g.File, "object", g.Object, "offset", g.Offset, "damage", g.Damage)
				if err := s.Remove(g.File); err != nil {
					return err
				}
			}
			return pause.For(ctx, time.Duration(float64(read)/float64(rate)*float64(time.Second))-time.Since(began))
		})
		if err != nil && ctx.Err() == nil {
			s.health.fail(err)
		}
		if pause.For(ctx, max(time.Minute, time.Duration(float64(read)/float64(rate)*float64(time.Second))-time.Since(began))) != nil {
			return
		}
	}
}
