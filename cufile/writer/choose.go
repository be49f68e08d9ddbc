package writer

import (
	"context"
	"fmt"
	"os"

	"github.com/hbmfs/hbmfs/cufile/internal/direct"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// choose gives the path of a write.
func (q *Write) choose(ctx context.Context) (Choice, error) {
	o := &q.w.opt
	wish := o.Path
	why := "asked for"
	switch wish {
	case Buffered:
		return Choice{Path: Buffered, Why: why}, nil
	case Mapped:
		if q.dir.inMemory() {
			return Choice{Path: Mapped, Why: why}, nil
		}
		why = "mapped: the files do not lie in memory (tmpfs)"
	case Staged:
		if !q.dir.inMemory() {
			return Choice{Path: Staged, Why: why}, nil
		}
		why = "staged: the files lie in memory, and cannot be written past it"
	case Direct, Auto:
		proof, ok, err := q.proveDirect(ctx)
		if err != nil || ok {
			return Choice{Path: Direct, Why: proof}, err
		}
		why = "direct: " + proof
	}
	switch {
	case o.Require:
		return Choice{}, fmt.Errorf("write to %s: %w: %s", q.dir.path, ErrUnavailable, why)
	case wish == Staged:
		return Choice{Path: Buffered, Why: why}, nil
	case q.dir.inMemory() && wish == Auto:
		return Choice{Path: Mapped, Why: "the files lie in memory"}, nil
	case q.dir.inMemory():
		return Choice{Path: Mapped, Why: why}, nil
	case wish == Auto:
		return Choice{Path: Staged, Why: "the files lie on storage; " + why}, nil
	}
	return Choice{Path: Staged, Why: why}, nil
}

// worthProof is the bytes of HBM from which Auto spends the second that it takes to prove Direct.
const worthProof = 64 << 20

// proveDirect says whether Direct is proven for the directory's filesystem, or why not.
func (q *Write) proveDirect(ctx context.Context) (why string, ok bool, err error) {
	w := q.w
	auto := w.opt.Path == Auto
	switch {
	case w.opt.proving:
		return "to be proven", true, nil
	case w.device.CUDA == nil:
		return "the device is the host", false, nil
	case q.dir.inMemory():
		return "the files lie in memory", false, nil
	case len(w.opt.Probe) == 0:
		return "there is no command to prove it with", false, nil
	case auto && q.inHBM() < worthProof:
		return "too few bytes are in HBM to be worth a proof", false, nil
	}
	if _, nvfs := os.Stat("/proc/driver/nvidia-fs/version"); auto && nvfs != nil && !source.OnNVMe(&source.Backing{Dev: q.dir.dev}) {
		return "no nvidia-fs, and the files are not on NVMe", false, nil
	}
	p, err := q.prove(ctx)
	if err != nil {
		return "", false, err
	}
	if p.Verdict != direct.Proven {
		return fmt.Sprintf("%s: %s", p.Verdict, p.Why), false, nil
	}
	if err := w.direct.Start(); err != nil {
		return err.Error(), false, nil
	}
	return p.Why, true, nil
}

// prove has a probe write: a file of its own in the directory, or the first of the files that are given.
func (q *Write) prove(ctx context.Context) (direct.Proof, error) {
	if !q.dir.past {
		return q.w.proofs.ProveWrites(ctx, q.dir.path, q.dir.dev)
	}
	o := q.outputs[0]
	o.mu.Lock()
	defer o.mu.Unlock()
	p, err := q.w.proofs.ProveWritesTo(ctx, o.fd, q.dir.dev)
	if err == nil {
		err = o.allocate() // the probe has cut it
	}
	return p, err
}

// inHBM gives the bytes of a write that come from the GPU.
func (q *Write) inHBM() (n int64) {
	for _, o := range q.outputs {
		for i := range o.parts {
			if p := &o.parts[i]; p.Host == nil {
				n += p.N
			}
		}
	}
	return n
}
