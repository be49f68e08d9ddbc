package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
)

// prefetch says what will be read: to the daemon for a file of a mount, to the kernel for any other.
func (l *library) prefetch(handle uint64, plan []cufile.Span) error {
	f, err := find[*file](l, handle)
	if err != nil {
		return err
	}
	if err := inside(plan, f.f.Size()); err != nil {
		return err
	}
	leave, err := f.enter("file")
	if err != nil {
		return err
	}
	defer leave()
	opened, err := os.Open(f.path)
	if err != nil {
		return fmt.Errorf("prefetch: %w", err)
	}
	defer func() { _ = opened.Close() }()
	for part := range slices.Chunk(plan, control.MaxRanges) {
		if err := advise(opened, part, f.f.Info().Mounted); err != nil {
			return err
		}
	}
	return nil
}

func advise(f *os.File, plan []cufile.Span, mounted bool) error {
	if mounted {
		ranges := make([]control.Range, len(plan))
		for i, span := range plan {
			ranges[i] = control.Range(span)
		}
		if err := control.Prefetch(f, ranges...); !errors.Is(err, unix.EAGAIN) { // busy: it is advice
			return err
		}
		return nil
	}
	for _, span := range plan {
		if err := unix.Fadvise(int(f.Fd()), span.Offset, span.Length, unix.FADV_WILLNEED); err != nil {
			return fmt.Errorf("prefetch %s: %w", f.Name(), err)
		}
	}
	return nil
}

// inside refuses a plan of ranges that are not inside a file.
func inside(plan []cufile.Span, size int64) error {
	for i, span := range plan {
		if span.Offset < 0 || span.Length < 0 || span.Offset > size || span.Length > size-span.Offset {
			return failf(codeOutOfRange, "range %d of the plan, %d bytes at %d, is not inside the file's %d", i, span.Length, span.Offset, size)
		}
	}
	return nil
}
