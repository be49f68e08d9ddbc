package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// VerifyOptions say how to read a checkpoint.
type VerifyOptions struct {
	Threads  int                     // that read; 0: one for each CPU, at most 8
	Progress func(done, total int64) // bytes; may be called from several threads at once. nil: nobody asks
}

// Report is the result of [Verify].
type Report struct {
	Path    string   `json:"path"`
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`   // that are right
	Seconds float64  `json:"seconds"` // that it took
	Damage  []Damage `json:"damage"`  // in order, the first ones
	Damaged int      `json:"damaged"` // how many there are in all
}

// Damage is a file, or a chunk of one, that differs from the published one.
type Damage struct {
	File   string `json:"file"`
	Chunk  int64  `json:"chunk"`  // -1: the file as a whole
	Offset int64  `json:"offset"` // of the chunk
	Length int64  `json:"length"`
	Why    string `json:"why"`
	Err    error  `json:"-"` // the same; [ErrDamaged], or the system's
}

const (
	mostDamage  = 1000
	verifySlice = 1 << 20 // bytes that are read at once
	verifyJob   = 16      // chunks that a thread takes at a time
)

// Verify reads all files of a checkpoint and compares them with their sums. Memory does not grow with their size. The report
// lists all damage. The error is of something else.
func Verify(ctx context.Context, path string, opt VerifyOptions) (*Report, error) {
	began := time.Now()
	v := &verification{opt: opt, report: Report{Path: path, Damage: []Damage{}}}
	var err error
	if v.c, err = Open(path); errors.Is(err, ErrDamaged) {
		v.damaged(Damage{File: ManifestName, Chunk: -1, Err: err})
	} else if err != nil {
		return nil, err
	} else if err = v.run(ctx); err != nil {
		return nil, fmt.Errorf("verify checkpoint %s: %w", path, err)
	}
	slices.SortFunc(v.report.Damage, func(a, b Damage) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Chunk, b.Chunk)) })
	v.report.Seconds = time.Since(began).Seconds()
	return &v.report, nil
}

func (v *verification) run(ctx context.Context) error {
	defer func() { _ = v.c.Close() }() // opened for reading
	threads := v.opt.Threads
	if threads <= 0 {
		threads = min(8, runtime.NumCPU())
	}
	v.report.Files, v.total = len(v.c.Manifest.Files), v.c.Manifest.Size()
	v.read(0)
	jobs := make(chan job)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { defer close(jobs); return v.plan(ctx, jobs) })
	for range threads {
		group.Go(func() error { return v.work(ctx, jobs) })
	}
	err := group.Wait()
	if err == nil && v.report.Damaged > 0 && v.c.removed() {
		err = fmt.Errorf("it was removed meanwhile: %w", fs.ErrNotExist)
	}
	return err
}

type verification struct {
	c   *Checkpoint
	opt VerifyOptions

	done  atomic.Int64
	total int64

	mu     sync.Mutex // guards report
	report Report
}

// job is chunks of a file, from first up to end.
type job struct {
	file       *File
	first, end int64
}

// plan looks at the files' sizes, and gives out those that fit.
func (v *verification) plan(ctx context.Context, jobs chan<- job) error {
	for i := range v.c.Manifest.Files {
		f := &v.c.Manifest.Files[i]
		if err := v.c.misfit(f); err != nil {
			v.damaged(Damage{File: f.Name, Chunk: -1, Length: f.Size, Err: err})
			v.read(f.Size)
			continue
		}
		if err := v.planFile(ctx, f, jobs); err != nil {
			return err
		}
	}
	for _, dir := range v.c.Manifest.Dirs {
		info, err := v.c.dir.Lstat(dir)
		if err == nil && !info.IsDir() || errors.Is(err, fs.ErrNotExist) {
			err = failf(ErrDamaged, "it was published as an empty directory, and is missing: make it, or ignore it")
		}
		if err != nil {
			v.damaged(Damage{File: dir, Chunk: -1, Err: err})
		}
	}
	return nil
}

// planFile gives out the chunks of a file.
func (v *verification) planFile(ctx context.Context, f *File, jobs chan<- job) error {
	opened, _, err := openRegular(v.c.dir, f.Name)
	if err != nil { // each of its chunks is damaged
		v.damaged(Damage{File: f.Name, Chunk: -1, Length: f.Size, Err: err})
		v.read(f.Size)
		return nil
	}
	defer func() { _ = opened.Close() }() // opened for reading
	return divide(ctx, opened, f, jobs, func(chunk int64, sum uint32) { v.judge(f, chunk, sum, nil) })
}

// read counts bytes that need not be looked at any more.
func (v *verification) read(n int64) {
	if done := v.done.Add(n); v.opt.Progress != nil {
		v.opt.Progress(done, v.total)
	}
}

func (v *verification) damaged(d Damage) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.Damaged++
	if len(v.report.Damage) < mostDamage {
		d.Why = d.Err.Error()
		v.report.Damage = append(v.report.Damage, d)
	}
}

func (v *verification) work(ctx context.Context, jobs <-chan job) error {
	buf := make([]byte, verifySlice)
	for j := range jobs {
		f, _, err := openRegular(v.c.dir, j.file.Name)
		for chunk := j.first; chunk < j.end; chunk++ {
			if ctx.Err() != nil {
				break
			}
			v.chunk(f, err, j.file, chunk, buf)
		}
		if err == nil {
			_ = f.Close() // opened for reading
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// chunk compares one chunk. openErr is why the file could not be opened.
func (v *verification) chunk(f *os.File, openErr error, file *File, chunk int64, buf []byte) {
	var sum uint32
	err := openErr
	if err == nil {
		at := chunk * Chunk
		sum, err = sumOf(f, at, min(Chunk, file.Size-at), buf)
	}
	v.judge(file, chunk, sum, err)
}

// judge notes a chunk's sum, or why there is none.
func (v *verification) judge(file *File, chunk int64, sum uint32, err error) {
	at := chunk * Chunk
	d := Damage{File: file.Name, Chunk: chunk, Offset: at, Length: min(Chunk, file.Size-at), Err: err}
	defer v.read(d.Length)
	if err == nil && sum != file.Sums[chunk] {
		d.Err = failf(ErrDamaged, "crc32c is %08x, %08x was published", sum, file.Sums[chunk])
	}
	if d.Err != nil {
		v.damaged(d)
		return
	}
	v.mu.Lock()
	v.report.Bytes += d.Length
	v.mu.Unlock()
}

// String is one sentence that names the file and the place.
func (d *Damage) String() string {
	if d.Chunk < 0 {
		return fmt.Sprintf("file %q: %v", d.File, d.Err)
	}
	return fmt.Sprintf("file %q, chunk %d, %d bytes from %d on: %v", d.File, d.Chunk, d.Length, d.Offset, d.Err)
}
