package cufile

import (
	"context"
	"os"

	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// worthProof is the size from which Auto spends the second that it takes to prove Direct.
const worthProof = 64 << 20

// autoDirect says whether Direct is proven for the files of a request, and why not.
func (f *File) autoDirect(ctx context.Context, pieces []source.Piece) (why string, ok bool, err error) {
	if len(f.r.opt.Probe) == 0 {
		return "direct: there is no command to prove it with", false, nil
	}
	_, nvfs := os.Stat("/proc/driver/nvidia-fs/version")
	for _, b := range source.FilesOf(pieces) {
		if b.Inline {
			continue
		}
		ok = true
		if nvfs != nil && !source.OnNVMe(b) {
			return "direct: no nvidia-fs, and the file is not on NVMe", false, nil
		}
		if b.Length < worthProof {
			return "direct: the file is too small to be worth a proof", false, nil
		}
		p, err := f.r.proofs.Prove(ctx, b)
		if err != nil {
			return "", false, err
		}
		if p.Verdict != Proven {
			return "direct: " + p.Why, false, nil
		}
		why = p.Why
	}
	if err := f.r.direct.Start(); err != nil {
		return "direct: " + err.Error(), false, nil
	}
	return why, ok, nil
}

// proveDirect fails unless Direct is proven for every object of the file that is on this machine. Objects that
// are read through the mount are proven by that read.
func (f *File) proveDirect(ctx context.Context) error {
	return f.eachGroup(ctx, []source.Span{{N: f.Size()}}, func(pieces []source.Piece, _, _ bool) error { return f.prove(ctx, pieces, true) })
}

// prove proves Direct for the files of pieces: for all of them, or for those of a cache, which may be younger than the File.
func (f *File) prove(ctx context.Context, pieces []source.Piece, all bool) error {
	for _, b := range source.FilesOf(pieces) {
		if !b.Inline && (all || b.Cached) {
			if err := f.r.proofs.Want(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}
