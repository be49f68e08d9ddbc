package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout/safetensors"
)

// descriptor reads a file that is the caller's.
type descriptor int

func (d descriptor) ReadAt(p []byte, off int64) (done int, err error) {
	for done < len(p) {
		n, err := unix.Pread(int(d), p[done:], off+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return done, err
		case n == 0:
			return done, io.EOF
		default:
			done += n
		}
	}
	return done, nil
}

// safetensorsTable is the header of a file as libhbmfs.h describes it, once it has been checked.
func safetensorsTable(fd int, name string) ([]byte, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fmt.Errorf("stat %s: %w", name, err)
	}
	h, err := safetensors.Open(descriptor(fd), stat.Size)
	if err == nil {
		err = h.Known()
	}
	var bad *safetensors.Error
	switch {
	case errors.As(err, &bad):
		return nil, failf(codeFormat, "%s is damaged or no safetensors file: %s", name, bad.Detail)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, failf(codeFormat, "%s became shorter while it was read: load it again when its writer is done", name)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out := strconv.AppendInt([]byte(`{"size":`), stat.Size, 10)
	metadata, err := json.Marshal(h.Metadata)
	if err != nil {
		return nil, err
	}
	out = append(append(append(out, `,"metadata":`...), metadata...), `,"tensors":[`...)
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if i > 0 {
			out = append(out, ',')
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, err
		}
		out = append(append(append(append(append(out, '['), name...), `,"`...), t.DType...), `",[`...)
		for k, n := range t.Shape {
			if k > 0 {
				out = append(out, ',')
			}
			out = strconv.AppendInt(out, n, 10)
		}
		out = strconv.AppendInt(append(out, "],"...), t.Begin, 10)
		out = append(strconv.AppendInt(append(out, ','), t.End-t.Begin, 10), ']')
	}
	return append(out, "]}"...), nil
}
