package cufile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
)

// Memory is memory of the caller on the Reader's device: of another allocator on the GPU, such as torch's, or of the
// host. Pointer is an address at any alignment, Length the room there.
type Memory struct {
	Pointer uintptr
	Length  int64
}

// Target says where a request's bytes go, and how.
type Target struct {
	Memory

	// Stream is a CUstream of the caller whose work up to the call of Begin is done before anything is written, so that
	// memory can be given that the GPU still uses. nil is none; the stream 0 is CUDA's default one. Ignored on the host.
	Stream *uintptr

	Widen Widen
}

// ErrMemory says that memory of the caller cannot be written to as was asked.
var ErrMemory = errors.New("not usable as the destination")

// landing gives the n bytes at a place of the caller's memory as a destination. after is what mark gave.
func (r *Reader) landing(at uintptr, n int64, after driver.Handle) crew.Destination {
	d := crew.Destination{HBM: driver.Pointer(at), After: after}
	if r.cu == nil { // memory that Go does not know, and which the caller keeps until the request has ended
		d.Host = unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)
	}
	return d
}

// check refuses a request that cannot be, before anything is written.
func (f *File) check(to *Target, offsets []int64, length int64) error {
	if err := f.inside(offsets, length); err != nil {
		return err
	}
	element, times, err := to.Widen.sizes()
	switch {
	case err != nil:
		return err
	case length%element != 0:
		return fmt.Errorf("read %s: %w: %d bytes are not whole elements of %d to widen", f.name, ErrMemory, length, element)
	case times > 1 && to.Pointer%widened != 0:
		return fmt.Errorf("read %s: %w: widened elements need memory aligned to %d", f.name, ErrMemory, widened)
	case length == 0 || len(offsets) == 0:
		return nil
	case to.Length < 0 || int64(len(offsets)) > to.Length/times/length:
		return fmt.Errorf("read %s: %w: %d spans of %d bytes, each %d times as long there, do not fit into %d", f.name, ErrMemory, len(offsets), length, times, to.Length)
	}
	return f.r.checkMemory(Memory{to.Pointer, int64(len(offsets)) * length * times})
}

// checkMemory asks CUDA what the caller's memory is: a wrong address would end the process, or the GPU's context.
func (r *Reader) checkMemory(m Memory) error {
	if m.Pointer == 0 || m.Pointer > math.MaxInt64-uintptr(m.Length) {
		return fmt.Errorf("%w: %d bytes at the address %#x cannot be", ErrMemory, m.Length, m.Pointer)
	}
	if r.cu == nil {
		return nil
	}
	return r.cu.Within(r.context, func() error {
		for _, at := range []uintptr{m.Pointer, m.Pointer + uintptr(m.Length) - 1} {
			if err := r.cu.IsOn(driver.Pointer(at), r.gpu.Device); err != nil {
				return fmt.Errorf("%w: %#x is no memory of %s (gpu %d): %w", ErrMemory, at, r.gpu.Name, r.gpu.Index, err)
			}
		}
		return nil
	})
}

// mark makes an event of the work that is on the caller's stream now; 0 where there is nothing to wait for.
func (r *Reader) mark(to *Target) (event driver.Handle, err error) {
	if r.cu == nil || to.Stream == nil {
		return 0, nil
	}
	err = r.cu.Within(r.context, func() error {
		if event, err = r.cu.NewEvent(); err != nil {
			return err
		}
		if err := r.cu.Record(event, driver.Handle(*to.Stream)); err != nil {
			return errors.Join(fmt.Errorf("mark the caller's stream: %w", err), r.cu.DestroyEvent(event))
		}
		return nil
	})
	return event, err
}

func (r *Reader) unmark(event driver.Handle) error {
	if event == 0 {
		return nil
	}
	return r.cu.Within(r.context, func() error { return r.cu.DestroyEvent(event) })
}

// quiet waits until nothing of a job writes any more. A job that a closed Reader never began does not end.
func (r *Reader) quiet(finished <-chan struct{}) {
	select {
	case <-finished:
		return
	case <-r.crew.Gone():
	}
	if r.mapped == nil {
		return
	}
	select {
	case <-finished:
	case <-r.mapped.Thread.Gone():
	}
}

// moveTo brings spans straight to memory of the caller. When it returns, also with an error, nothing is under way.
func (f *File) moveTo(ctx context.Context, to crew.Destination, offsets []int64, length int64) (Result, error) {
	t := &transfer{f: f, offsets: offsets, length: length, to: to, callers: true}
	finished, err := t.run(ctx)
	if err != nil {
		f.r.quiet(finished)
		return Result{}, err
	}
	return Result{t.moved, t.choice}, nil
}

// moveByArena brings spans into the arena and from there to memory of the caller, widened on the way.
func (f *File) moveByArena(ctx context.Context, to *crew.Destination, widen Widen, offsets []int64, length int64) (Result, error) {
	v, err := f.Gather(ctx, offsets, length)
	if err != nil {
		return Result{}, err
	}
	defer v.Release()
	if err := f.r.deliver(ctx, v, to, widen); err != nil {
		return Result{}, err
	}
	return Result{v.Moved(), v.Choice()}, nil
}

// deliver copies a view to memory of the caller. When it returns, also with an error, nothing is under way.
func (r *Reader) deliver(ctx context.Context, v *View, to *crew.Destination, widen Widen) error {
	if r.cu == nil {
		return r.deliverHost(ctx, v, to, widen)
	}
	finished, err := r.crew.Run(ctx, 1, 1, func(w *crew.Worker, _ int64) error {
		s, err := w.Slot()
		if err != nil {
			return err
		}
		if err := to.Ready(w); err != nil {
			return err
		}
		if widen == WidenNone {
			err = w.CUDA.CopyWithin(to.HBM, driver.Pointer(v.Pointer()), v.Len(), w.Stream)
		} else {
			err = launchWiden(w, &r.widen, widen, driver.Pointer(v.Pointer()), to.HBM, v.Len())
		}
		if err != nil {
			return err
		}
		return w.Sent(s)
	})
	r.quiet(finished)
	return err
}

// deliverHost shares the copy among the threads.
func (r *Reader) deliverHost(ctx context.Context, v *View, to *crew.Destination, widen Widen) error {
	const block = 1 << 20
	_, times, err := widen.sizes()
	if err != nil {
		return err
	}
	from := v.Bytes()
	finished, err := r.crew.Run(ctx, r.opt.Threads, (v.Len()+block-1)/block, func(_ *crew.Worker, i int64) (err error) {
		// What is no memory at all must not end the process.
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if fault := recover(); fault != nil {
				err = fmt.Errorf("%w: write to %#x: %v", ErrMemory, to.HBM, fault)
			}
		}()
		part := from[i*block : min((i+1)*block, v.Len())]
		widen.copy(to.Host[i*block*times:], part)
		return nil
	})
	r.quiet(finished)
	return err
}

// bytesMoved is the most that one part of a request moves: it bounds the plan that is held, and is long enough that
// the bus does not notice the border.
const bytesMoved = 512 << 20

// eachPart cuts spans into parts of at most limit bytes and gives each with its place in the destination.
func eachPart(offsets []int64, length, limit int64, fn func(offsets []int64, length, at int64) error) error {
	if length <= limit {
		rows := int(limit / length)
		for i := 0; i < len(offsets); i += rows {
			if err := fn(offsets[i:min(i+rows, len(offsets))], length, int64(i)*length); err != nil {
				return err
			}
		}
		return nil
	}
	for i, offset := range offsets {
		for at := int64(0); at < length; at += limit {
			if err := fn([]int64{offset + at}, min(limit, length-at), int64(i)*length+at); err != nil {
				return err
			}
		}
	}
	return nil
}

// run moves the parts of a request one after the other. It returns when nothing writes to the target any more.
func (f *File) run(ctx context.Context, to *Target, after driver.Handle, offsets []int64, length int64) (Result, error) {
	total := Result{Choice: Choice{f.r.opt.Path, "there is nothing to move"}}
	if length == 0 || len(offsets) == 0 {
		return total, nil
	}
	_, times, err := to.Widen.sizes()
	if err != nil {
		return Result{}, err
	}
	straight := times == 1 && f.r.opt.Path != Direct && f.r.opt.Path != Compat
	first := true
	move := func(offsets []int64, length, at int64) error {
		n := int64(len(offsets)) * length
		place := to.Pointer + uintptr(at*times)
		var part Result
		err := errArena
		if straight {
			part, err = f.moveTo(ctx, f.r.landing(place, n*times, after), offsets, length)
		}
		if errors.Is(err, errArena) {
			err = eachPart(offsets, length, f.r.opt.Arena/4, func(offsets []int64, length, skip int64) error {
				inner := f.r.landing(place+uintptr(skip*times), int64(len(offsets))*length*times, after)
				some, err := f.moveByArena(ctx, &inner, to.Widen, offsets, length)
				part.Moved.Add(some.Moved)
				part.Choice = some.Choice
				return err
			})
		}
		if err != nil {
			return err
		}
		if first {
			total.Choice, first = part.Choice, false
		}
		total.Moved.Add(part.Moved)
		return nil
	}
	if err := eachPart(offsets, length, bytesMoved, move); err != nil {
		return Result{}, err
	}
	return total, nil
}
