package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/direct"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// RunProbe is the body of the command that Options.Probe names. It reads a question from in, writes a file with compat mode off, and writes
// a proof to out. The file is one that it makes in the directory at descriptor 3, and removes, or it is descriptor 3 itself. It fails
// when in or out do.
func RunProbe(_ context.Context, in io.Reader, out io.Writer) error {
	return direct.Answer(in, out, strictWrite)
}

// strictWrite writes chunks of HBM through cuFile with compat mode off, compares the kernel's reads of them, and judges cuFile's own
// counters. Any error means that Direct does not work here.
func strictWrite(q direct.Question) (p direct.Proof, err error) {
	w, err := New(Options{Device: q.Device, Path: Direct, Require: true, Threads: 1, Libraries: q.Libraries, proving: true})
	if err != nil {
		return p, err
	}
	p, err = w.writeAndJudge(fmt.Sprintf("/proc/self/fd/%d", direct.ProbeFD), q.Make)
	return p, errors.Join(err, w.Close())
}

func (w *Writer) writeAndJudge(directory, name string) (direct.Proof, error) {
	const count = 4
	want := make([]byte, count*ChunkSize)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(want) // it never fails
	var at driver.Pointer
	var before, after driver.WayCounts
	var countErr error
	ctx := context.Background()
	if err := w.crew.Do(ctx, func(*crew.Worker) (err error) {
		if at, err = w.device.CUDA.Alloc(int64(len(want))); err != nil {
			return err
		}
		if countErr = w.direct.StartCounting(); countErr == nil {
			before, countErr = w.direct.WriteCounts(w.device.GPU.RawUUID)
		}
		return w.device.CUDA.CopyPageable(at, want)
	}); err != nil {
		return direct.Proof{}, err
	}
	path := filepath.Join(directory, name)
	written, err := w.writeProof(directory, File{name, int64(len(want)), []Part{{0, Memory{HBM: uintptr(at), N: int64(len(want))}}}})
	if err == nil {
		_, err = written.Result()
	}
	got, readErr := os.ReadFile(path)
	if name != "" {
		err = errors.Join(err, unix.Unlink(path))
	}
	err = errors.Join(err, readErr, w.crew.Do(ctx, func(*crew.Worker) (err error) {
		if countErr == nil {
			after, countErr = w.direct.WriteCounts(w.device.GPU.RawUUID)
		}
		return w.device.CUDA.Free(at)
	}))
	switch {
	case err != nil:
		return direct.Proof{}, err
	case !bytes.Equal(want, got):
		return direct.Proof{Verdict: direct.Refuted, Why: "the kernel reads other bytes than cuFile wrote"}, nil
	case countErr != nil:
		return direct.Proof{Verdict: direct.Unknown, Why: "it writes with compat mode off, but " + countErr.Error()}, nil
	}
	verdict, why := direct.Judge(before, after, count, "writes")
	return direct.Proof{Verdict: verdict, Why: why}, nil
}

// writeProof writes a file in a directory, or, where it has no name, the file at the path.
func (w *Writer) writeProof(path string, f File) (*Write, error) {
	if f.Name != "" {
		return w.Write(path, []File{f}, nil)
	}
	f.Name = "proof"
	open := func() (*os.File, error) { return os.OpenFile(path, os.O_RDWR, 0) }
	return w.WriteGiven(path, []Given{{File: f, Open: open}}, nil)
}
