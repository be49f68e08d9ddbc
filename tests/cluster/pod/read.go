package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// patience bounds the requests to the control channel.
const patience = time.Minute

// wrongError says that bytes were read which are not the file's.
type wrongError struct{ text string }

func (e *wrongError) Error() string { return e.text }

// compare compares the bytes read at off.
func compare(name string, got []byte, off int64, how string) error {
	start := off &^ 7
	want := make([]byte, off-start+int64(len(got)))
	fill(want, name, start)
	if want = want[off-start:]; bytes.Equal(got, want) {
		return nil
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	return &wrongError{fmt.Sprintf("%s of %s gives %x at %d, want %x", how, name, got[i:min(i+16, len(got))], off+int64(i), want[i:min(i+16, len(want))])}
}

// each reads a file from its beginning to its end.
func each(in io.ReaderAt, name string, do func(p []byte)) error {
	buffer := make([]byte, 1<<20)
	for off := int64(0); ; {
		n, err := in.ReadAt(buffer, off)
		if wrong := compare(name, buffer[:n], off, "read"); wrong != nil {
			return wrong
		}
		do(buffer[:n])
		off += int64(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func hash(path, name string) (text string, n int64, err error) {
	in, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = in.Close() }() // opened for reading
	h := sha256.New()
	err = each(in, name, func(p []byte) {
		_, _ = h.Write(p) // never fails
		n += int64(len(p))
	})
	return fmt.Sprintf("%x", h.Sum(nil)), n, err
}

// past reads a file past FUSE, from its backing files, except for ranges that are not on this node yet.
func past(path, name string) (text string, n, bypassed int64, err error) {
	h, err := hold(path, name)
	if err != nil {
		return "", 0, 0, err
	}
	defer h.close()
	s := sha256.New()
	bypassed, err = h.bypass(name, func(p []byte) {
		_, _ = s.Write(p) // never fails
		n += int64(len(p))
	})
	return fmt.Sprintf("%x", s.Sum(nil)), n, bypassed, err
}

// held is a reader's hold on a file: an open file, a mapping, and backing files.
type held struct {
	file     *os.File
	mapping  []byte
	client   *control.Client
	extents  []control.Extent
	backings map[uint64]control.Backing
}

func hold(path, name string) (h *held, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h = &held{backings: map[uint64]control.Backing{}}
	if h.file, err = os.Open(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	info, err := h.file.Stat()
	if err != nil {
		return nil, err
	}
	if h.mapping, err = unix.Mmap(int(h.file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	if h.client, err = control.Dial(ctx, filepath.Dir(path), "pod of "+name); err != nil {
		return nil, err
	}
	for batch, err := range control.Batches(h.file, 0, math.MaxInt64, true) {
		if err != nil {
			return nil, err
		}
		h.extents = append(h.extents, batch.Extents...)
		if len(batch.Objects()) == 0 {
			continue
		}
		backings, err := h.client.Redeem(ctx, batch.Ticket, batch.Objects())
		if err != nil {
			return nil, err
		}
		for _, b := range backings {
			if h.backings[b.Object] = b; b.Err != nil {
				return nil, b.Err
			}
		}
	}
	return h, nil
}

// bypass reads every extent from its backing file, in order, and counts the bytes.
func (h *held) bypass(name string, do func(p []byte)) (n int64, err error) {
	for _, e := range h.extents {
		for k := range e.Count {
			got, from, off := make([]byte, e.Length), io.ReaderAt(h.file), e.Logical+k*e.Length
			at := off
			if e.Flags&control.ExtentMount == 0 {
				from, at = h.backings[e.Object].File, e.Offset+k*e.Stride
				n += e.Length
			}
			if _, err := from.ReadAt(got, at); err != nil {
				return n, fmt.Errorf("read an extent: %w", err)
			}
			if err := compare(name, got, off, "an extent"); err != nil {
				return n, err
			}
			do(got)
		}
	}
	return n, nil
}

// check reads all that is held once more.
func (h *held) check(name string) (bypassed int64, err error) {
	if h == nil {
		return 0, errors.New("nothing is held")
	}
	if err := each(h.file, name, func([]byte) {}); err != nil {
		return 0, fmt.Errorf("the file that was open: %w", err)
	}
	if err := compare(name, h.mapping, 0, "the mapping that was there"); err != nil {
		return 0, err
	}
	return h.bypass(name, func([]byte) {})
}

func (h *held) close() {
	for _, b := range h.backings {
		if b.File != nil {
			_ = b.File.Close() // opened for reading
		}
	}
	if h.client != nil {
		_ = h.client.Close() // all that it gave was read
	}
	if h.mapping != nil {
		_ = unix.Munmap(h.mapping) // of a length that was mapped
	}
	_ = h.file.Close() // opened for reading
}

// loop does something again and again, and looks at the clock.
type loop struct {
	passes, bytes, errors, longest atomic.Int64
	wrong, first                   atomic.Pointer[string]
}

// startLoop reads a file that stays open and mapped.
func startLoop(path, name string) (*loop, error) {
	h, err := hold(path, name)
	if err != nil {
		return nil, err
	}
	return again(func(did func(n int)) error { return h.pass(name, did) }), nil
}

// again starts a loop, which ends with the pod. A pass tells of each step that it did.
func again(pass func(did func(n int)) error) *loop {
	l := &loop{}
	go l.run(pass)
	return l
}

func (l *loop) run(pass func(did func(n int)) error) {
	last := time.Now()
	did := func(n int) {
		now := time.Now()
		l.longest.Store(max(l.longest.Load(), int64(now.Sub(last))))
		last = now
		l.bytes.Add(int64(n))
	}
	for {
		err := pass(did)
		time.Sleep(20 * time.Millisecond) // it rests now and then: a node has many pods
		did(0)
		if err == nil {
			l.passes.Add(1)
			continue
		}
		text := err.Error()
		var wrong *wrongError
		if errors.As(err, &wrong) {
			l.wrong.CompareAndSwap(nil, &text)
		}
		l.errors.Add(1)
		l.first.CompareAndSwap(nil, &text)
		time.Sleep(10 * time.Millisecond) // a failing read fails at once, and would fill a CPU
	}
}

// pass has the kernel ask for every page again, of the open file and of the mapping.
func (h *held) pass(name string, did func(n int)) error {
	forget := func() error {
		return errors.Join(unix.Madvise(h.mapping, unix.MADV_DONTNEED), unix.Fadvise(int(h.file.Fd()), 0, 0, unix.FADV_DONTNEED))
	}
	err := errors.Join(forget(), each(h.file, name, func(p []byte) { did(len(p)) }), forget())
	const page = 64 << 10
	for off := 0; off < len(h.mapping) && err == nil; off += page {
		end := min(off+page, len(h.mapping))
		err = compare(name, h.mapping[off:end], int64(off), "a mapping that stays")
		did(end - off)
	}
	if err == nil {
		_, err = h.bypass(name, func(p []byte) { did(len(p)) })
	}
	return err
}

func (l *loop) answer(a *answer) {
	if l == nil {
		a.Error = "no loop was started"
		return
	}
	a.Passes, a.Bytes, a.Errors, a.Longest = l.passes.Load(), l.bytes.Load(), l.errors.Load(), l.longest.Load()
	if text := l.wrong.Load(); text != nil {
		a.Wrong = *text
	}
	if text := l.first.Load(); text != nil {
		a.Facts = []string{*text}
	}
}
