package cufile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/direct"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// RunProbe is the body of the command that Options.Probe names. It reads a question from in, reads the file at
// descriptor 3 with compat mode off, and writes a Proof to out. It fails when in or out do.
func RunProbe(ctx context.Context, in io.Reader, out io.Writer) error {
	return direct.Answer(in, out, func(q direct.Question) (Proof, error) { return strictRead(ctx, q) })
}

// strictRead reads aligned blocks of the file through cuFile with compat mode off, compares them with the kernel's
// reads, and judges cuFile's own counters. Any error means that Direct does not work here.
func strictRead(ctx context.Context, q direct.Question) (Proof, error) {
	const block, most = 1 << 20, 8
	b, err := source.NewBacking(direct.ProbeFD, "the file", 1)
	if err != nil {
		return Proof{}, err
	}
	defer func() { _ = b.Close() }()
	if b.Length < driver.PageSize {
		return Proof{Verdict: Unknown, Why: "the file has less than one page"}, nil
	}
	r, err := New(ctx, Options{Device: q.Device, Path: Direct, Threads: 1, Slot: block, Arena: most * block, Libraries: q.Libraries})
	if err != nil {
		return Proof{}, err
	}
	p, err := r.add(b.Name, source.Plain(b), "").readAndJudge(ctx, b, block, most)
	return p, errors.Join(err, r.Close())
}

func (f *File) readAndJudge(ctx context.Context, b *source.Backing, block, most int64) (Proof, error) {
	// Whole pages only: the page at the end of a file is one that every file system reads in its own way.
	size := min(block, b.Length/driver.PageSize*driver.PageSize)
	count := min(most, b.Length/size)
	stride := (b.Length - size) / max(count-1, 1) / driver.PageSize * driver.PageSize
	var before, after driver.WayCounts
	countErr := f.r.crew.Do(ctx, func(*crew.Worker) (err error) {
		if err = f.r.direct.StartCounting(); err == nil {
			before, err = f.r.direct.ReadCounts(f.r.device.GPU.RawUUID)
		}
		return err
	})
	want, got := make([]byte, size), make([]byte, size)
	for i := range count {
		v, err := f.Read(ctx, i*stride, size)
		if err != nil {
			return Proof{}, err
		}
		err = errors.Join(b.ReadFull(want, i*stride), v.CopyTo(ctx, got, 0))
		v.Release()
		if err != nil {
			return Proof{}, err
		}
		if !bytes.Equal(want, got) {
			return Proof{Verdict: Refuted, Why: fmt.Sprintf("cuFile brought other bytes than the kernel at %d", i*stride)}, nil
		}
	}
	if countErr != nil {
		return Proof{Verdict: Unknown, Why: "it reads with compat mode off, but " + countErr.Error()}, nil
	}
	if err := f.r.crew.Do(ctx, func(*crew.Worker) (err error) {
		after, err = f.r.direct.ReadCounts(f.r.device.GPU.RawUUID)
		return err
	}); err != nil {
		return Proof{}, err
	}
	verdict, why := direct.Judge(before, after, uint64(count), "reads")
	return Proof{Verdict: verdict, Why: why}, nil
}
