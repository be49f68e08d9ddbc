package main

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile/writer"
)

func openWriter(t *testing.T, l *library, o readerOptions, rate int64) uint64 {
	t.Helper()
	handle, err := l.openWriter(&writerOptions{Options: writer.Options{Device: o.Device, Threads: 2, Arena: 1 << 20, Rate: rate, Libraries: o.Libraries}})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "wait for the arena", l.waitReady(handle, -1), codeOK)
	return handle
}

// TestWritersAndWhatTheyBegan ends snapshots and writes in every order, and leaves no handle.
func TestWritersAndWhatTheyBegan(t *testing.T) {
	onEachDevice(t, func(t *testing.T, l *library, o readerOptions) {
		dir := t.TempDir()
		data := make([]byte, 700<<10)
		memory := []writer.Memory{{Host: data}}
		w := openWriter(t, l, o, 0)
		first, copies, err := l.snapshot(w, memory, nil, -1)
		want(t, "snapshot", err, codeOK)
		_, err = l.waitSnapshot(first, -1)
		want(t, "wait for it", err, codeOK)
		_, _, err = l.snapshot(w, memory, nil, time.Millisecond)
		want(t, "snapshot without room", err, codeTimeout)
		_, _, err = l.snapshot(w, append(memory, memory...), nil, -1)
		want(t, "snapshot that never fits", err, codeTooLarge)
		files := []writer.File{{Name: "a", Size: 700 << 10, Parts: []writer.Part{{Memory: writer.Memory{Host: copies[0]}}}}}
		q, err := l.write(w, dir, files, nil)
		want(t, "write", err, codeOK)
		_, err = l.waitWrite(q, -1, make([]uint32, 2))
		want(t, "wait with room for too many sums", err, codeInvalid)
		sums := make([]uint32, 1)
		r, err := l.waitWrite(q, -1, sums)
		want(t, "wait", err, codeOK)
		if len(r.Files) != 1 || r.Files[0].Sums[0] != sums[0] || sums[0] == 0 {
			t.Errorf("%+v, sums %v", r, sums)
		}
		_, err = l.waitWrite(q, -1, nil)
		want(t, "wait twice", err, codeClosed)
		q, err = l.write(w, dir, files, nil)
		want(t, "write again", err, codeOK)
		_, err = l.waitWrite(q, -1, nil)
		want(t, "wait for a file that is there", err, codeWrite)
		if _, errno := codeOf(err); errno != syscall.EEXIST {
			t.Errorf("errno %d, want EEXIST", errno)
		}
		_, err = l.write(w, filepath.Join(dir, "missing"), files, nil)
		want(t, "write to nowhere", err, codeWrite)
		_, err = l.waitSnapshot(w, 0)
		want(t, "wait for what is no snapshot", err, codeInvalid)
		closing(t, "close", l.closeWriter, w)
		want(t, "close twice", l.closeWriter(w), codeClosed)
		want(t, "release after that", l.releaseSnapshot(first), codeOK)
		want(t, "release twice", l.releaseSnapshot(first), codeClosed)
		if n := len(l.things); n != 0 {
			t.Errorf("%d handles are left", n)
		}
	})
}

// TestClosingAWriterCancels a write that goes on for long.
func TestClosingAWriterCancels(t *testing.T) {
	onEachDevice(t, func(t *testing.T, l *library, o readerOptions) {
		w := openWriter(t, l, o, 1<<20)
		q, err := l.write(w, t.TempDir(), []writer.File{{Name: "a", Size: 1 << 30}}, nil)
		want(t, "write", err, codeOK)
		waited := make(chan error, 1)
		go func() {
			_, err := l.waitWrite(q, -1, nil)
			waited <- err
		}()
		second, err := l.write(w, t.TempDir(), []writer.File{{Name: "a", Size: 1 << 30}}, nil)
		want(t, "write another", err, codeOK)
		want(t, "cancel", l.cancel(second, -1), codeOK)
		closing(t, "close", l.closeWriter, w)
		want(t, "the wait", <-waited, codeCancelled, codeClosed)
		_, err = l.write(w, t.TempDir(), nil, nil)
		want(t, "write after that", err, codeClosed)
		if n := len(l.things); n != 0 {
			t.Errorf("%d handles are left", n)
		}
	})
}

func TestErrorsOfWritersHaveTheirCodes(t *testing.T) {
	for _, c := range []struct {
		err   error
		want  code
		errno syscall.Errno
	}{
		{writer.ErrClosed, codeClosed, 0},
		{writer.ErrPlan, codeInvalid, 0},
		{writer.ErrMemory, codeInvalid, 0},
		{writer.ErrNoMemory, codeOutOfMemory, 0},
		{writer.ErrTooLarge, codeTooLarge, 0},
		{&writer.Error{Path: "x", Call: "open", Err: syscall.ENOENT}, codeWrite, syscall.ENOENT},
		{&writer.Error{Path: "x", Call: "pwrite", Err: syscall.EACCES}, codeWrite, syscall.EACCES},
		{&writer.Error{Path: "x", Call: "cuFileWrite", Err: errors.New("5008")}, codeWrite, 0},
		{&otherwise{codeInvalid, &os.PathError{Op: "open", Path: "x", Err: syscall.EIO}}, codeIO, syscall.EIO},
	} {
		if got, errno := codeOf(c.err); got != c.want || errno != c.errno {
			t.Errorf("%v: code %d, errno %d, want %d, %d", c.err, got, errno, c.want, c.errno)
		}
	}
}
