package cufile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// Proof is what a probe says about Direct for one file.
type Proof struct {
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why"`
}

// proofs remembers what was found out, by the file: a proof is for one file on one device.
type proofs struct {
	turn  chan struct{} // held by who reads or writes known: a probe takes seconds, and waiting for one must be possible to give up
	known map[fileID]Proof
}

type fileID struct{ dev, ino uint64 }

// probeRequest is what the parent writes to the probe's standard input. The file is descriptor 3.
type probeRequest struct {
	Libraries driver.Libraries `json:"libraries"`
	Device    int              `json:"device"`
}

// probeFD is the descriptor that the probe reads, after the three standard ones.
const probeFD = 3

// openPatience bounds a driver's start and a probe: the first CUDA call of a machine can take many seconds.
const openPatience = 60 * time.Second

// proveDirect fails unless Direct is proven for every object of the file that is on this machine.
func (f *File) proveDirect(ctx context.Context) error {
	return source.Follow(ctx, f.source, func(inMount bool) error {
		if inMount { // its objects are proven when they are read
			return nil
		}
		return f.proveObjects(ctx)
	})
}

func (f *File) proveObjects(ctx context.Context) error {
	runs, err := f.source.Runs(ctx, 0, f.Size())
	if err != nil {
		return err
	}
	seen := map[uint64]bool{}
	for _, r := range runs {
		if seen[r.Object] || r.Length == 0 {
			continue
		}
		seen[r.Object] = true
		b := f.source.Backing(&r)
		if b.Inline {
			continue
		}
		p, err := f.proveLent(ctx, b)
		if err != nil {
			return err
		}
		if err := p.want(b); err != nil {
			return err
		}
	}
	return nil
}

func (p *Proof) want(b *source.Backing) error {
	if p.Verdict != Proven {
		return fmt.Errorf("%w: direct for %s is %s: %s", ErrUnavailable, b.Name, p.Verdict, p.Why)
	}
	return nil
}

// proveCached proves Direct for files of a cache that a request needs: they may be younger than the File.
func (f *File) proveCached(ctx context.Context, pieces []source.Piece) error {
	seen := map[*source.Backing]bool{}
	for i := range pieces {
		b := pieces[i].File
		if !b.Cached || seen[b] {
			continue
		}
		seen[b] = true
		p, err := f.r.prove(ctx, b)
		if err == nil {
			err = p.want(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *File) proveLent(ctx context.Context, b *source.Backing) (Proof, error) {
	var lent []*source.Backing
	if b.Lender != nil {
		lent = append(lent, b)
	}
	if err := f.r.descriptors.Pin(ctx, lent); err != nil {
		return Proof{}, err
	}
	defer f.r.descriptors.Unpin(lent)
	return f.r.prove(ctx, b)
}

// prove asks the probe about a file, once. It fails only when ctx ends; what goes wrong in the probe is its verdict.
func (r *Reader) prove(ctx context.Context, b *source.Backing) (Proof, error) {
	var st unix.Stat_t
	if err := unix.Fstat(b.FD, &st); err != nil {
		return Proof{}, fmt.Errorf("stat %s: %w", b.Name, err)
	}
	id := fileID{st.Dev, st.Ino}
	select {
	case r.proofs.turn <- struct{}{}:
	case <-ctx.Done():
		return Proof{}, ctx.Err()
	}
	defer func() { <-r.proofs.turn }()
	if p, ok := r.proofs.known[id]; ok {
		return p, nil
	}
	p := r.probe(ctx, b)
	if err := ctx.Err(); err != nil {
		return Proof{}, err
	}
	r.proofs.known[id] = p
	return p, nil
}

// probe opens the file again, so that the probe has a description of its own, and asks.
func (r *Reader) probe(ctx context.Context, b *source.Backing) Proof {
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", b.FD))
	if err != nil {
		return Proof{Unknown, "the file cannot be opened again: " + err.Error()}
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	return Prove(ctx, r.opt.Probe, r.opt.Libraries, r.opt.Device, file)
}

// Prove runs the command, whose body is [RunProbe], on an open file. cuFile keeps its settings and counters per process,
// and a broken set-up can crash or hang: only a process of its own can be asked strictly.
func Prove(ctx context.Context, command []string, l driver.Libraries, device int, file *os.File) Proof {
	if len(command) == 0 {
		return Proof{Unknown, "there is no command to prove it with"}
	}
	input, err := json.Marshal(probeRequest{l, device})
	if err != nil {
		return Proof{Unknown, err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	started := time.Now()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	cmd.ExtraFiles = []*os.File{file}
	cmd.WaitDelay = time.Second
	runErr := cmd.Run()
	if ctx.Err() != nil {
		return Proof{Refuted, fmt.Sprintf("the probe did not end within %v", time.Since(started).Round(time.Second))}
	}
	if runErr != nil {
		last := strings.TrimSpace(stderr.String())
		return Proof{Refuted, strings.TrimSpace(fmt.Sprintf("the probe died: %v %s", runErr, last[max(0, len(last)-200):]))}
	}
	var p Proof
	if err := json.Unmarshal(stdout.Bytes(), &p); err != nil || (p.Verdict != Proven && p.Verdict != Refuted && p.Verdict != Unknown) {
		return Proof{Unknown, "the probe answered nothing that can be read"}
	}
	return p
}

// RunProbe is the body of the command that Options.Probe names. It reads a request from in, reads the file at
// descriptor 3 with compat mode off, and writes a Proof to out. It fails when in or out do.
func RunProbe(ctx context.Context, in io.Reader, out io.Writer) error {
	var q probeRequest
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("read the probe's request: %w", err)
	}
	p, err := strictRead(ctx, q)
	if err != nil {
		p = Proof{Refuted, err.Error()}
		if errors.Is(err, driver.ErrStatsUnknown) {
			p.Verdict = Unknown
		}
	}
	return json.NewEncoder(out).Encode(p)
}

// strictRead reads aligned blocks of the file through cuFile with compat mode off, compares them with what the kernel
// reads, and judges cuFile's own counters. Any error means that Direct does not work here.
func strictRead(ctx context.Context, q probeRequest) (Proof, error) {
	const block, most = 1 << 20, 8
	b, err := source.NewBacking(probeFD, "the file", 1)
	if err != nil {
		return Proof{}, err
	}
	defer func() { _ = b.Close() }()
	if b.Length < driver.PageSize {
		return Proof{Unknown, "the file has less than one page"}, nil
	}
	r, err := New(ctx, Options{Device: q.Device, Path: Direct, Threads: 1, Slot: block, Arena: most * block, Libraries: q.Libraries})
	if err != nil {
		return Proof{}, err
	}
	f := &File{r: r, name: b.Name, source: source.Plain(b)}
	p, err := f.readAndJudge(ctx, b, block, most)
	return p, errors.Join(err, r.forget([]*source.Backing{b}), r.Close())
}

func (f *File) readAndJudge(ctx context.Context, b *source.Backing, block, most int64) (Proof, error) {
	// Whole pages only: the page at the end of a file is one that every file system reads in its own way.
	size := min(block, b.Length/driver.PageSize*driver.PageSize)
	count := min(most, b.Length/size)
	stride := (b.Length - size) / max(count-1, 1) / driver.PageSize * driver.PageSize
	var before, after driver.ReadCounts
	count0 := func() (err error) {
		if err = f.r.cufile.lib.StartCounting(); err != nil {
			return err
		}
		before, err = f.r.cufile.lib.Counts(f.r.gpu.RawUUID)
		return err
	}
	countErr := f.r.crew.Do(ctx, func(*crew.Worker) error { return count0() })
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
			return Proof{Refuted, fmt.Sprintf("cuFile brought other bytes than the kernel at %d", i*stride)}, nil
		}
	}
	if countErr != nil {
		return Proof{Unknown, "it reads with compat mode off, but " + countErr.Error()}, nil
	}
	if err := f.r.crew.Do(ctx, func(*crew.Worker) (err error) {
		after, err = f.r.cufile.lib.Counts(f.r.gpu.RawUUID)
		return err
	}); err != nil {
		return Proof{}, err
	}
	verdict, why := judge(before, after, uint64(count))
	return Proof{verdict, why}, nil
}
