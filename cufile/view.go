package cufile

import (
	"context"
	"fmt"
	"sync"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
)

// View is bytes of a file in the device's memory. Release gives the memory back.
type View struct {
	r        *Reader
	at       int64 // in the arena
	reserved int64
	skew     int64 // from at to the first byte
	n        int64
	moved    Moved
	choice   Choice
	once     sync.Once
}

// Len is the number of bytes.
func (v *View) Len() int64 { return v.n }

// Pointer is the address of the first byte in HBM (a CUdeviceptr); 0 on the host or when the view is empty.
func (v *View) Pointer() uintptr {
	if v.r.device.CUDA == nil || v.n == 0 {
		return 0
	}
	return uintptr(v.r.arena.HBM(v.at + v.skew))
}

// Bytes is the memory on the host; nil on a GPU.
func (v *View) Bytes() []byte {
	if v.r.device.CUDA != nil {
		return nil
	}
	return v.r.arena.Host(v.at + v.skew)[:v.n:v.n]
}

// destination is where the bytes lie, for the path that moves them.
func (v *View) destination() *crew.Destination {
	return &crew.Destination{HBM: v.r.arena.HBM(v.at + v.skew), Host: v.r.arena.Host(v.at + v.skew)}
}

// Moved says which paths the bytes took.
func (v *View) Moved() Moved { return v.moved }

// Choice is the path that the request was given, and why. A request of more backing files than may be open at once is
// moved in parts, each by its own choice. This is the first part's, and Moved has them all.
func (v *View) Choice() Choice { return v.choice }

// Release gives the memory back. The view must not be used after it; releasing twice does nothing.
func (v *View) Release() {
	v.once.Do(func() {
		if v.reserved > 0 {
			v.r.arena.Free(v.at, v.reserved)
		}
	})
}

// CopyTo copies the view's bytes from offset on into p, which must lie inside the view.
func (v *View) CopyTo(ctx context.Context, p []byte, offset int64) error {
	if offset < 0 || offset > v.n || int64(len(p)) > v.n-offset {
		return fmt.Errorf("copy %d bytes at %d of a view of %d: %w", len(p), offset, v.n, ErrOutOfRange)
	}
	return v.r.arena.CopyOut(ctx, p, v.at+v.skew+offset)
}
