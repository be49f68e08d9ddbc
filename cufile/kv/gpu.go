package kv

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// slotBytes is the size of a worker's staging slot.
const slotBytes = 4 << 20

// stepBytes bounds one step of a mapped copy; a worker has three under way.
const stepBytes = 8 << 20

// pieceEntry is the bytes of a piece in the kernel's table, launchBytes the most of one piece: see cufile/internal/driver/gather.cu.
const (
	pieceEntry  = 24
	launchBytes = 32 << 10
)

// gpu is the GPU of a Store, and the threads that copy.
type gpu struct {
	*device.Device
	crew    *crew.Crew
	workers int // of the crew, that one part of a request uses: puts and gets go at once
}

func newGPU(d *device.Device, o *Options) (*gpu, error) {
	g := &gpu{Device: d, workers: max(1, o.Threads/2)}
	var err error
	g.crew, err = crew.New(crew.Options{CUDA: d.CUDA, Context: d.Context, Kernels: &d.Kernels, Threads: o.Threads, SlotSize: o.slot, Near: driver.NearCPUs(d.GPU.NUMA)})
	if err != nil {
		return nil, fmt.Errorf("%d bytes of host memory for each of %d threads: %w", crew.SlotsPerWorker*o.slot, o.Threads, err)
	}
	return g, nil
}

// close may be called again after ErrUnderWay.
func (g *gpu) close() error {
	if err := g.crew.Close(); err != nil {
		return err
	}
	return g.Within(func() error { return g.Kernels.Unload(g.CUDA) })
}

// fragment is bytes of the GPU and of registered memory, one of which is copied to the other.
type fragment struct {
	hbm  driver.Pointer
	slot []byte
}

// join puts fragments together that go on where the one before ends, in the GPU and in the slots, up to the border of a region.
func join(list []fragment, hbm driver.Pointer, t *tier, offset, n int64) []fragment {
	if k := len(list) - 1; k >= 0 && offset%t.region != 0 {
		last := &list[k]
		size := int64(len(last.slot))
		if last.hbm+driver.Pointer(size) == hbm && size+n <= stepBytes && offset >= size && &t.memory[offset-size] == &last.slot[0] {
			last.slot = t.slot(offset-size, size+n)
			return list
		}
	}
	return append(list, fragment{hbm, t.slot(offset, n)})
}

// move copies fragments, behind an event of the caller's stream, and waits. It returns when no copy is under way any more.
func (g *gpu) move(ctx context.Context, list []fragment, in bool, after driver.Handle) error {
	if len(list) == 0 {
		return nil
	}
	total := int64(0)
	for i := range list {
		total += int64(len(list[i].slot))
	}
	small := total/int64(len(list)) < g.CUDA.SmallPieces()
	steps := cut(list, small)
	finished, err := g.crew.Run(ctx, g.workers, int64(len(steps)), func(w *crew.Worker, i int64) error {
		slot, err := w.Slot()
		if err != nil {
			return err
		}
		if after != 0 {
			if err := w.CUDA.StreamWait(w.Stream, after); err != nil {
				return err
			}
		}
		if small {
			err = g.launch(w, slot, steps[i], in)
		} else {
			err = copyEach(w, steps[i], in)
		}
		if err != nil {
			return errors.Join(err, w.CUDA.Synchronize(w.Stream))
		}
		return w.Sent(slot)
	})
	<-finished
	return err
}

// cut makes steps of fragments: as many as one copies, or as one table has.
func cut(list []fragment, small bool) (steps [][]fragment) {
	const mostEntries = 8 << 10 // a table of 192 KiB
	for len(list) > 0 {
		n, bytes, entries := 0, int64(0), int64(0)
		for n < len(list) {
			size := int64(len(list[n].slot))
			if bytes += size; n > 0 && (bytes > stepBytes || small && entries+size/launchBytes+1 > mostEntries) {
				break
			}
			entries += size/launchBytes + 1
			n++
		}
		steps, list = append(steps, list[:n]), list[n:]
	}
	return steps
}

func copyEach(w *crew.Worker, list []fragment, in bool) error {
	var copies driver.Copies
	for i := range list {
		to, from := driver.Address(list[i].slot), list[i].hbm
		if in {
			to, from = from, to
		}
		copies.Add(to, from, int64(len(list[i].slot)))
	}
	return w.CUDA.CopyAll(&copies, in, w.Stream)
}

// launch writes a table of pieces into a slot, which the GPU reads as well, and starts the kernel that copies them.
func (g *gpu) launch(w *crew.Worker, slot *crew.Slot, list []fragment, in bool) error {
	count, table := 0, slot.Memory
	flush := func() error {
		if count == 0 {
			return nil
		}
		return w.Launch(&crew.Destination{}, slot.Device(), count)
	}
	for i := range list {
		at, err := g.CUDA.DeviceAddress(list[i].slot)
		if err != nil {
			return err
		}
		for skip := int64(0); skip < int64(len(list[i].slot)); skip += launchBytes {
			if len(table) < pieceEntry { // the table must not change before the kernel has read it
				if err := errors.Join(flush(), g.CUDA.Synchronize(w.Stream)); err != nil {
					return err
				}
				count, table = 0, slot.Memory
			}
			from, to := list[i].hbm, at
			if in {
				from, to = at, list[i].hbm
			}
			binary.NativeEndian.PutUint64(table, uint64(from)+uint64(skip))
			binary.NativeEndian.PutUint64(table[8:], uint64(to)+uint64(skip))
			binary.NativeEndian.PutUint64(table[16:], uint64(min(int64(len(list[i].slot))-skip, launchBytes)))
			count, table = count+1, table[pieceEntry:]
		}
	}
	return flush()
}

// stagedPut copies a block through pinned slots to a tier. It is a step of a crew.
func stagedPut(w *crew.Worker, j *job, after driver.Handle) error {
	return eachChunk(w, j, after, func(slot *crew.Slot, p []byte, pieces []Memory, at int64) error {
		if err := gather(w, slot, p, pieces); err != nil {
			return err
		}
		if j.sums {
			j.crc = update(j.crc, p)
		}
		return j.failed(j.tier.write(p, j.offset+at))
	})
}

// stagedGet is its mirror.
func stagedGet(w *crew.Worker, j *job, after driver.Handle) error {
	return eachChunk(w, j, after, func(slot *crew.Slot, p []byte, pieces []Memory, at int64) error {
		if err := j.tier.read(p, j.offset+at); err != nil {
			return j.failed(err)
		}
		if j.sums {
			j.crc = update(j.crc, p)
		}
		sent := false
		for _, m := range pieces {
			n := m.Size()
			if m.Host != nil {
				copy(m.Host, p[:n])
			} else if err := w.CUDA.CopyIn(driver.Pointer(m.HBM), p[:n], w.Stream); err != nil {
				return errors.Join(err, w.CUDA.Synchronize(w.Stream))
			} else {
				sent = true
			}
			p = p[n:]
		}
		if sent {
			return w.Sent(slot)
		}
		return nil
	})
}

func eachChunk(w *crew.Worker, j *job, after driver.Handle, do func(slot *crew.Slot, p []byte, pieces []Memory, at int64) error) error {
	if after != 0 {
		if err := w.CUDA.StreamWait(w.Stream, after); err != nil {
			return err
		}
	}
	for at := int64(0); at < j.block.size && j.err == nil; {
		slot, err := w.Slot()
		if err != nil {
			return err
		}
		n := min(j.block.size-at, int64(len(slot.Memory)))
		if err := do(slot, slot.Memory[:n], j.block.pieces(at, n), at); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// gather fills memory of a slot with pieces, and waits for the copies.
func gather(w *crew.Worker, slot *crew.Slot, p []byte, pieces []Memory) error {
	sent := false
	for _, m := range pieces {
		n := m.Size()
		if m.Host != nil {
			copy(p, m.Host)
		} else if err := w.CUDA.CopyOut(p[:n], driver.Pointer(m.HBM), w.Stream); err != nil {
			return errors.Join(err, w.CUDA.Synchronize(w.Stream))
		} else {
			sent = true
		}
		p = p[n:]
	}
	if !sent {
		return nil
	}
	if err := w.Sent(slot); err != nil {
		return err
	}
	return w.Settle(slot)
}
