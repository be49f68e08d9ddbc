package drain

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// mostParts is S3's, of one object.
const mostParts = 10_000

// upload is a file that is stored in parts.
type upload struct {
	s       *sending
	f       *checkpoint.File
	name    string
	id      string
	size    int64 // of a part
	onlyNew bool
	parts   []s3origin.Stored // in order; those that are not stored yet have no number
	left    atomic.Int32
}

// partSize is the size of the parts of a file: whole chunks, and not too many parts.
func partSize(size, wish int64) int64 {
	least := (size + mostParts - 1) / mostParts
	n := max(wish, least)
	return (n + checkpoint.Chunk - 1) / checkpoint.Chunk * checkpoint.Chunk
}

// begin goes on with the upload of a file that an earlier life has begun, or begins one.
func (s *sending) begin(ctx context.Context, f *checkpoint.File, onlyNew bool) (*upload, error) {
	u := &upload{s: s, f: f, name: s.name(f), size: partSize(f.Size, s.d.opt.PartSize), onlyNew: onlyNew}
	b, known := s.j.begun(u.name)
	known = known && b.ID != ""
	var ids []string
	if known {
		ids, u.size = []string{b.ID}, b.Part
	}
	if !known {
		// The journal may have lost it. A server that does not tell has none, as far as anybody knows.
		err := s.d.try(ctx, func(ctx context.Context, _ func()) (err error) {
			ids, err = s.d.bucket.Uploads(ctx, u.name)
			return err
		})
		if err != nil && !lasting(err) {
			return nil, err
		}
	}
	for _, id := range ids {
		if err := u.take(ctx, id); err == nil {
			return u, nil
		} else if !errors.Is(err, s3origin.ErrNoUpload) && !errors.Is(err, errAgain) {
			return nil, fmt.Errorf("go on with the upload of %q: %w", u.name, err)
		} else if errors.Is(err, errAgain) {
			s.d.abort(ctx, u.name, id)
		}
	}
	u.size = partSize(f.Size, s.d.opt.PartSize)
	u.parts = make([]s3origin.Stored, (f.Size+u.size-1)/u.size)
	s.j.add(line{Name: u.name, Begun: &begun{Part: u.size}}) // a kill may come before the answer
	attempts := 0
	err := s.d.try(ctx, func(ctx context.Context, _ func()) (err error) {
		attempts++
		ctx, end := linger(ctx)
		defer end()
		u.id, err = s.d.bucket.Begin(ctx, u.name, s.d.sums.Load() != sumsMD5)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("begin to store %q: %w", u.name, err)
	}
	if attempts > 1 { // the answer to one of them may have been lost
		ids, err := s.d.bucket.Uploads(ctx, u.name)
		for _, id := range ids {
			if err == nil && id != u.id {
				s.d.abort(ctx, u.name, id)
			}
		}
	}
	s.j.add(line{Name: u.name, Begun: &begun{ID: u.id, Part: u.size}})
	return u, nil
}

// lingerTime is how long an answer that matters is waited for after nobody wants it any more.
const lingerTime = 3 * time.Second

// linger gives a context that ends some time after ctx.
func linger(ctx context.Context) (longer context.Context, end func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(lingerTime, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() { stop(); cancel() }
}

// settled is linger for a request that stores something. A server that acts after nobody listens would store objects of a removed checkpoint, and they
// would stay. One that has stalled ends at once.
func settled(ctx context.Context) (_ context.Context, end func()) {
	longer, over := linger(ctx)
	stalled, cancel := context.WithCancelCause(longer)
	stop := context.AfterFunc(ctx, func() {
		if err := context.Cause(ctx); errors.Is(err, fetch.ErrStalled) {
			cancel(err)
		}
	})
	return stalled, func() { stop(); cancel(nil); over() }
}

// take takes an upload with the parts that are there and right. errAgain: it is not of this file.
func (u *upload) take(ctx context.Context, id string) error {
	if u.size < checkpoint.Chunk || u.size%checkpoint.Chunk != 0 || (u.f.Size+u.size-1)/u.size > mostParts {
		return fmt.Errorf("%w: its parts cannot have %d bytes", errAgain, u.size)
	}
	var parts []s3origin.Stored
	err := u.s.d.try(ctx, func(ctx context.Context, _ func()) (err error) {
		parts, err = u.s.d.bucket.Parts(ctx, u.name, id)
		return err
	})
	if err != nil {
		return err
	}
	u.id, u.parts = id, make([]s3origin.Stored, (u.f.Size+u.size-1)/u.size)
	for _, p := range parts {
		if p.Number > len(u.parts) {
			return fmt.Errorf("%w: it has a part %d", errAgain, p.Number)
		}
		off, n := u.span(p.Number - 1)
		same, err := u.s.same(ctx, u.f, off, n, p)
		if err != nil {
			return err
		}
		if same {
			u.parts[p.Number-1] = p
			u.s.skip(n)
		}
	}
	u.s.j.add(line{Name: u.name, Begun: &begun{ID: u.id, Part: u.size}})
	return nil
}

// span is the stretch of part i, from 0.
func (u *upload) span(i int) (off, n int64) {
	off = int64(i) * u.size
	return off, min(u.size, u.f.Size-off)
}

// send has the group send the parts that are missing. The last of them completes the object.
func (u *upload) send(ctx context.Context, g *errgroup.Group) error {
	var missing []int
	for i := range u.parts {
		if u.parts[i].Number == 0 {
			missing = append(missing, i)
		}
	}
	if len(missing) == 0 {
		g.Go(func() error { return u.complete(ctx) })
		return nil
	}
	u.left.Store(int32(len(missing)))
	for _, i := range missing {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		g.Go(func() error {
			if err := u.sendPart(ctx, i); err != nil {
				return u.explain(ctx, err)
			}
			if u.left.Add(-1) > 0 {
				return nil
			}
			return u.complete(ctx)
		})
	}
	return nil
}

func (u *upload) sendPart(ctx context.Context, i int) error {
	off, n := u.span(i)
	o, err := u.s.attempt(ctx, u.f, off, n, func(ctx context.Context, body io.Reader, crc string) (s3origin.Stored, error) {
		return u.s.d.bucket.PutPart(ctx, u.name, u.id, i+1, body, n, crc)
	})
	u.parts[i] = o
	if err != nil {
		return fmt.Errorf("store part %d of %q: %w", i+1, u.name, err)
	}
	return nil
}

// explain makes errAgain of an upload that the server no longer has.
func (u *upload) explain(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, s3origin.ErrParts):
		u.s.d.abort(ctx, u.name, u.id)
		fallthrough
	case errors.Is(err, s3origin.ErrNoUpload):
		u.s.j.add(line{Name: u.name, Forget: true})
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	return err
}

// complete makes the object, and compares the server's answer.
func (u *upload) complete(ctx context.Context) error {
	var o s3origin.Stored
	complete := func(onlyNew bool) error {
		return u.s.d.try(ctx, func(ctx context.Context, alive func()) (err error) {
			stop := u.s.d.keepAlive(alive, mostWork) // servers take minutes for it
			defer stop()
			ctx, end := settled(ctx)
			defer end()
			o, err = u.s.d.bucket.Complete(ctx, u.name, u.id, u.parts, onlyNew)
			return err
		})
	}
	err := complete(u.onlyNew)
	if errors.Is(err, errors.ErrUnsupported) && u.onlyNew {
		err = complete(false)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, s3origin.ErrNoUpload) { // perhaps by an attempt whose answer was lost
		adopted := u.s.adoptNamed(ctx, u.f)
		if errors.Is(err, fs.ErrExist) {
			u.s.d.abort(ctx, u.name, u.id)
		}
		if errors.Is(adopted, fs.ErrNotExist) {
			return u.explain(ctx, s3origin.ErrNoUpload)
		}
		return adopted
	}
	if err != nil {
		return u.explain(ctx, fmt.Errorf("complete %q: %w", u.name, err))
	}
	if err := u.compare(ctx, &o); err != nil {
		return fmt.Errorf("complete %q: %w", u.name, err)
	}
	u.s.j.add(line{Name: u.name, Stored: &stored{Size: u.f.Size, ETag: o.ETag, Part: u.size}})
	return nil
}

// compare compares an object that was just completed with the file.
func (u *upload) compare(ctx context.Context, o *s3origin.Stored) error {
	if o.CRC32C == "" && u.s.d.sums.Load() == sumsCRC {
		err := u.s.d.try(ctx, func(ctx context.Context, _ func()) error {
			seen, err := u.s.d.bucket.Stat(ctx, u.name)
			if err == nil && (seen.ETag != o.ETag || seen.Size != u.f.Size) {
				err = fmt.Errorf("%w: it completes an object with the ETag %.80q, and then has %.80q and %d bytes", fetch.ErrLie, o.ETag, seen.ETag, seen.Size)
			}
			o.CRC32C = seen.CRC32C
			return err
		})
		if err != nil {
			return err
		}
	}
	if o.CRC32C != "" {
		if !u.s.hasSum(u.f, u.size, o.CRC32C) {
			return fmt.Errorf("%w: the object has the CRC-32C %.40s, which is not the file's", fetch.ErrLie, o.CRC32C)
		}
		return nil
	}
	if want := etagOf(u.parts); o.ETag != want {
		return fmt.Errorf("%w: the object has no CRC-32C, and the ETag %.80q, where %q follows from its parts", fetch.ErrLie, o.ETag, want)
	}
	return nil
}

// hasSum tells whether a CRC-32C, as S3 writes it, is that of a file that was stored in parts of so many bytes.
func (s *sending) hasSum(f *checkpoint.File, part int64, sum string) bool {
	if !strings.Contains(sum, "-") {
		return sum == written(s.d.combiner.of(f.Sums, f.Size))
	}
	if part == 0 {
		return false
	}
	var sums []uint32
	for off := int64(0); off < f.Size; off += part {
		n := min(part, f.Size-off)
		sums = append(sums, s.d.combiner.of(f.Sums[off/checkpoint.Chunk:(off+n+checkpoint.Chunk-1)/checkpoint.Chunk], n))
	}
	return sum == composite(sums)
}

// same tells whether a part that a server lists has the bytes of a stretch of the file.
func (s *sending) same(ctx context.Context, f *checkpoint.File, off, n int64, p s3origin.Stored) (bool, error) {
	if p.Size != n {
		return false, nil
	}
	if p.CRC32C != "" {
		return p.CRC32C == written(s.d.combiner.of(f.Sums[off/checkpoint.Chunk:(off+n+checkpoint.Chunk-1)/checkpoint.Chunk], n)), nil
	}
	if s.d.sums.Load() == sumsCRC {
		return false, nil // it would have one
	}
	sum, err := s.md5(ctx, f, off, n)
	return err == nil && p.ETag == fmt.Sprintf("%x", sum.Sum(nil)), err
}

// md5 reads a stretch of a file for its MD5.
func (s *sending) md5(ctx context.Context, f *checkpoint.File, off, n int64) (hash.Hash, error) {
	file, err := s.c.OpenFile(f)
	if err != nil {
		return nil, localError{fmt.Errorf("file %q: %w", f.Name, err)}
	}
	defer func() { _ = file.Close() }() // opened for reading
	buf := s.chunk()
	defer s.free(buf)
	b := &body{ctx: ctx, reader: &s.d.reader, file: file, of: f, at: off, end: off + n, buf: buf, pace: s.d.pace, hash: md5.New(), alive: func() {}}
	if _, err := io.Copy(io.Discard, b); err != nil {
		return nil, localError{err}
	}
	return b.hash, nil
}

// adopt tells whether an object that is there has the bytes of a file, and notes it then.
func (s *sending) adopt(ctx context.Context, f *checkpoint.File, o s3origin.Stored) (bool, error) {
	if o.Size != f.Size {
		return false, nil
	}
	name := s.name(f)
	if o.CRC32C == "" {
		err := s.d.try(ctx, func(ctx context.Context, _ func()) (err error) {
			o, err = s.d.bucket.Stat(ctx, name)
			return err
		})
		if err != nil {
			return false, fmt.Errorf("look at %q: %w", name, err)
		}
	}
	sizes := []int64{0, partSize(f.Size, s.d.opt.PartSize)}
	if b, ok := s.j.begun(name); ok {
		sizes[0] = b.Part
	}
	for _, part := range sizes {
		same := s.hasSum(f, part, o.CRC32C)
		if o.CRC32C == "" {
			var err error
			if same, err = s.hasETag(ctx, f, part, o.ETag); err != nil {
				return false, err
			}
		}
		if same && o.Size == f.Size {
			s.j.add(line{Name: name, Stored: &stored{Size: f.Size, ETag: o.ETag, Part: part}})
			s.skip(f.Size)
			return true, nil
		}
	}
	return false, nil
}

// hasETag tells whether an ETag is that of a file that was stored in parts of so many bytes, 0 for none.
func (s *sending) hasETag(ctx context.Context, f *checkpoint.File, part int64, etag string) (bool, error) {
	if whole := !strings.Contains(etag, "-"); whole || part == 0 {
		if !whole {
			return false, nil
		}
		sum, err := s.md5(ctx, f, 0, f.Size)
		return err == nil && etag == fmt.Sprintf("%x", sum.Sum(nil)), err
	}
	var parts []s3origin.Stored
	for off := int64(0); off < f.Size; off += part {
		sum, err := s.md5(ctx, f, off, min(part, f.Size-off))
		if err != nil {
			return false, err
		}
		parts = append(parts, s3origin.Stored{ETag: fmt.Sprintf("%x", sum.Sum(nil))})
	}
	return etag == etagOf(parts), nil
}

// abort has the server forget an upload. One that stays is found when the object is begun again, and ended by the bucket's rules.
func (d *Drain) abort(ctx context.Context, name, id string) {
	if err := d.try(ctx, func(ctx context.Context, _ func()) error { return d.bucket.Abort(ctx, name, id) }); err != nil {
		d.log.Warn("an unfinished upload stays at the destination", "object", name, "error", err)
	}
}

// smallSums gives the CRC-32C of a text, and a function that gives a hash that has read it.
func smallSums(text []byte) (crc string, sum func() hash.Hash) {
	return written(crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))), func() hash.Hash {
		h := md5.New()
		_, _ = h.Write(text)
		return h
	}
}
