// Package readback moves files into the memory of a device, copies the bytes back from there, and hashes them. Where a manifest lies beside a
// file, the bytes are compared with its checksums.
package readback

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/commands/inspect"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// Options select the files to read, and how.
type Options struct {
	Reader   cufile.Options // the arena's size is settled here
	Offset   int64
	Length   int64 // -1 for all
	Progress func(doing string, total int64, bytes bool) (add func(int64), end func())
}

// Result is that of one file, and the JSON of hbmfs read.
type Result struct {
	File     string        `json:"file"`
	Bytes    int64         `json:"bytes"`
	SHA256   string        `json:"sha256"`
	Seconds  float64       `json:"seconds"` // of moving and hashing
	Paths    cufile.Moved  `json:"paths"`   // bytes by path
	Choice   cufile.Choice `json:"choice"`  // of the last part
	GPU      *cufile.GPU   `json:"gpu,omitempty"`
	Verified int64         `json:"verified"` // bytes that were compared with the manifest

	Unverified string `json:"-"` // why none were
}

// A part of a file, how many are under way at once, and how many files are open.
const (
	span  = 32 << 20
	depth = 4
	most  = 256
)

// Files reads files one after the other, and gives each result to each. A range that does not lie in its file is a [cli.Mistake].
func Files(ctx context.Context, names []string, o Options, each func(*Result) error) (err error) {
	o.Reader.Arena = (depth + 1) * (span + 64<<10) // and a unit for unaligned bytes
	r, err := cufile.New(ctx, o.Reader)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for some := range slices.Chunk(names, most) {
		if err := o.some(ctx, r, some, each); err != nil {
			return err
		}
	}
	return nil
}

func (o *Options) some(ctx context.Context, r *cufile.Reader, names []string, each func(*Result) error) (err error) {
	files, errs := r.OpenMany(ctx, names)
	defer func() {
		for _, f := range files {
			if f != nil {
				err = errors.Join(err, f.Close())
			}
		}
	}()
	for i, f := range files {
		if errs[i] != nil {
			return errs[i]
		}
		result, err := o.move(ctx, f, names[i])
		if err != nil {
			return err
		}
		if gpu := r.GPU(); gpu.UUID != "" {
			result.GPU = &gpu
		}
		if err := each(result); err != nil {
			return err
		}
	}
	return nil
}

// move streams the range through the device's memory and hashes the bytes that come back.
func (o *Options) move(ctx context.Context, f *cufile.File, name string) (*Result, error) {
	offset, length := o.Offset, o.Length
	if offset < 0 || offset > f.Size() || length < -1 || length > f.Size()-offset {
		return nil, cli.Mistakef("%s has %d bytes: --offset %d --length %d is not inside", name, f.Size(), offset, length)
	}
	if length < 0 {
		length = f.Size() - offset
	}
	sums, err := inspect.SumsOf(name, f.Size())
	if err != nil {
		return nil, err
	}
	var plan []cufile.Span
	for at := offset; at < offset+length; {
		// Parts end where the checksums' blocks do, so that whole blocks can be compared.
		n := min(span-at%span, offset+length-at)
		plan = append(plan, cufile.Span{Offset: at, Length: n})
		at += n
	}
	add, end := o.Progress("reading", length, true)
	defer end()
	start := time.Now()
	stream := f.Stream(ctx, plan, depth)
	defer stream.Close()
	hash := sha256.New()
	result := &Result{File: name, Bytes: length, Unverified: sums.None()}
	buffer := make([]byte, min(span, length))
	for _, part := range plan {
		v, err := stream.Next(ctx)
		if err != nil {
			return nil, err
		}
		data := buffer[:part.Length]
		err = v.CopyTo(ctx, data, 0)
		result.Choice = v.Choice()
		v.Release()
		if err != nil {
			return nil, err
		}
		hash.Write(data)
		n, err := sums.Check(part.Offset, data)
		if err != nil {
			return nil, fmt.Errorf("verify %s: %w", name, err)
		}
		result.Verified += n
		add(part.Length)
	}
	result.Seconds = time.Since(start).Seconds()
	result.SHA256 = hex.EncodeToString(hash.Sum(nil))
	result.Paths = f.Moved()
	return result, nil
}
