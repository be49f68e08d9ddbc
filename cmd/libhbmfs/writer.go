package main

import (
	"context"
	"errors"
	"os/exec"
	"time"

	"github.com/hbmfs/hbmfs/cufile/writer"
)

// writerOptions are hbmfs_writer_options.
type writerOptions struct {
	writer.Options
	method, require string
	hbmfs           string // the command
}

func (l *library) openWriter(o *writerOptions) (uint64, error) {
	opt := o.Options
	wish := o.method
	if o.require != "" {
		wish, opt.Require = o.require, true
	}
	var err error
	if wish != "" {
		if opt.Path, err = writer.ParsePath(wish); err != nil {
			return 0, &otherwise{codeInvalid, err}
		}
	}
	if o.hbmfs == "" {
		o.hbmfs, _ = exec.LookPath("hbmfs") // without it the direct path says that it cannot be proven
	}
	if o.hbmfs != "" {
		opt.Probe = []string{o.hbmfs, probeCommand, "writes"}
	}
	w, err := writer.New(opt)
	if err != nil {
		return 0, &otherwise{codeInvalid, err}
	}
	return l.add(0, w)
}

// waitReady waits until a writer's arena is pinned.
func (l *library) waitReady(handle uint64, timeout time.Duration) error {
	w, err := find[*writer.Writer](l, handle)
	if err != nil {
		return err
	}
	if !wait(w.Ready(), timeout) {
		return failf(codeTimeout, "the arena is not pinned yet")
	}
	ready, err := w.IsReady()
	if err == nil && !ready {
		err = failf(codeClosed, "the writer was closed before its arena was pinned")
	}
	return err
}

// closeWriter closes a writer with its writes. Where a call hangs, the handles stay.
func (l *library) closeWriter(handle uint64) error {
	return internally(closeThing(l, handle, "writer", (*writer.Writer).Close))
}

// snapshot starts one. Its handle does not go with the writer's: the copies may still be read.
func (l *library) snapshot(handle uint64, list []writer.Memory, stream *uintptr, timeout time.Duration) (uint64, [][]byte, error) {
	w, err := find[*writer.Writer](l, handle)
	if err != nil {
		return 0, nil, err
	}
	ctx := context.Background()
	if timeout >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	s, err := w.Snapshot(ctx, list, stream)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return 0, nil, failf(codeTimeout, "the arena has no room yet, or is not pinned there")
	case err != nil:
		return 0, nil, err
	}
	added, err := l.add(0, s)
	return added, s.Copies, err
}

func (l *library) waitSnapshot(handle uint64, timeout time.Duration) (time.Duration, error) {
	s, err := find[*writer.Snapshot](l, handle)
	if err != nil {
		return 0, err
	}
	if !wait(s.Done(), timeout) {
		return 0, failf(codeTimeout, "the snapshot is not copied yet")
	}
	return s.Result()
}

func (l *library) releaseSnapshot(handle uint64) error {
	s, err := find[*writer.Snapshot](l, handle)
	if err != nil {
		return err
	}
	if !l.remove(handle) {
		return failf(codeClosed, "handle %d is closed", handle)
	}
	return s.Release()
}

func (l *library) write(handle uint64, directory string, files []writer.File, stream *uintptr) (uint64, error) {
	w, err := find[*writer.Writer](l, handle)
	if err != nil {
		return 0, err
	}
	q, err := w.Write(directory, files, stream)
	if err != nil {
		return 0, err
	}
	return l.add(handle, q)
}

// waitWrite ends the write and its handle, unless it takes longer than timeout. It fills sums.
func (l *library) waitWrite(handle uint64, timeout time.Duration, sums []uint32) (writer.Result, error) {
	q, err := find[*writer.Write](l, handle)
	if err != nil {
		return writer.Result{}, err
	}
	if !wait(q.Done(), timeout) {
		return writer.Result{}, failf(codeTimeout, "the write is not done yet")
	}
	result, err := q.Result()
	n := 0
	for i := range result.Files {
		n += len(result.Files[i].Sums)
	}
	if err == nil && len(sums) > 0 && n != len(sums) {
		return writer.Result{}, failf(codeInvalid, "there is room for %d sums, and the files have %d", len(sums), n)
	}
	l.remove(handle)
	for i := range result.Files {
		if len(sums) > 0 {
			sums = sums[copy(sums, result.Files[i].Sums):]
		}
	}
	if errors.Is(err, context.Canceled) {
		err = failf(codeCancelled, "the write was cancelled, or its writer closed, before it was done")
	}
	return result, err
}
