package drain

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// sending is one checkpoint on its way.
type sending struct {
	d    *Drain
	it   *item
	c    *checkpoint.Checkpoint
	text []byte // of the manifest
	j    *journal

	there map[string]s3origin.Stored // in the bucket, when it began, by name there
	mends bool                       // the checkpoint is complete there, and objects of it were lost: others of their names give way

	mu     sync.Mutex // guards chunks
	chunks [][]byte   // buffers that are free
}

// send makes a checkpoint remote. Remote files are not sent again.
func (s *sending) send(ctx context.Context) error {
	part := s.c.Manifest.Part
	if err := s.d.claim(ctx, part); err != nil {
		return err
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	_, complete := s.there[s.prefix()+checkpoint.ManifestName]
	switch {
	case complete:
		return s.mend(ctx)
	case s.it.recorded:
		return s.agree(ctx)
	}
	if err := s.refuseHoles(); err != nil {
		return err
	}
	refuse := s.refuseForeign
	if part.Of > 1 {
		refuse = func() error { return s.claimPart(ctx) }
	}
	if err := refuse(); err != nil {
		return err
	}
	if err := s.sendFiles(ctx); err != nil {
		return err
	}
	if err := s.confirm(ctx); err != nil {
		return err
	}
	if err := s.d.claim(ctx, part); err != nil { // another may have taken the place over meanwhile
		return err
	}
	if part.Of > 1 {
		return s.agree(ctx)
	}
	return s.publish(ctx)
}

func (s *sending) prefix() string { return s.it.name + "/" }

// name is the name of a file in the bucket. Nodes write one .metadata each, of the same name. Each describes the files of all
// nodes, so that of part 0 is the checkpoint's.
func (s *sending) name(f *checkpoint.File) string {
	if part := s.c.Manifest.Part; part.Index > 0 && f.Name == ".metadata" {
		return fmt.Sprintf("%s.hbmfs-part-%d-of-%d/%s", s.prefix(), part.Index, part.Of, f.Name)
	}
	return s.prefix() + f.Name
}

// look asks for existing objects.
func (s *sending) look(ctx context.Context) error {
	objects, err := s.d.list(ctx, s.prefix())
	if err != nil {
		return err
	}
	s.there = make(map[string]s3origin.Stored, len(objects))
	for _, o := range objects {
		s.there[o.Name] = o
	}
	return nil
}

// refuseForeign refuses objects that are no files of the checkpoint.
func (s *sending) refuseForeign() error {
	names := make(map[string]bool, len(s.c.Manifest.Files))
	for i := range s.c.Manifest.Files {
		names[s.name(&s.c.Manifest.Files[i])] = true
	}
	for name := range s.there {
		if !names[name] && name != s.prefix()+checkpoint.ManifestName {
			return fmt.Errorf("%w: object %q lies under the checkpoint's name, and is none of its files: move it away, or name another place", ErrForeign, name)
		}
	}
	return nil
}

// sendFiles stores all files, as many requests at once as there are connections.
func (s *sending) sendFiles(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(s.d.opt.Connections)
	err := func() error {
		for i := range s.c.Manifest.Files {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := s.sendFile(ctx, g, &s.c.Manifest.Files[i]); err != nil {
				return err
			}
		}
		return nil
	}()
	if failed := g.Wait(); failed != nil {
		return failed
	}
	return err
}

// sendFile has the group store the missing ranges of a file.
func (s *sending) sendFile(ctx context.Context, g *errgroup.Group, f *checkpoint.File) error {
	name := s.name(f)
	object, there := s.there[name]
	if known, ok := s.j.stored(name); ok && there && known.ETag == object.ETag && known.Size == f.Size && object.Size == f.Size {
		s.skip(f.Size)
		return nil
	}
	if there {
		same, err := s.adopt(ctx, f, object)
		if err != nil || same {
			return err
		}
		if !s.d.opt.TakeOver && !s.mends {
			return fmt.Errorf("%w: object %q is there, and has other bytes than the file: move it away, or name another place", ErrForeign, name)
		}
	}
	if f.Size <= s.d.opt.PartSize {
		g.Go(func() error { return s.putFile(ctx, f, !there) })
		return nil
	}
	u, err := s.begin(ctx, f, !there)
	if err != nil {
		return err
	}
	return u.send(ctx, g)
}

func (s *sending) skip(n int64) {
	s.d.counts.skipped.Add(n)
	s.it.done.Add(n)
}

// putFile stores a small file.
func (s *sending) putFile(ctx context.Context, f *checkpoint.File, onlyNew bool) error {
	name := s.name(f)
	put := func(onlyNew bool) (s3origin.Stored, error) {
		return s.attempt(ctx, f, 0, f.Size, func(ctx context.Context, body io.Reader, crc string) (s3origin.Stored, error) {
			return s.d.bucket.Put(ctx, name, body, f.Size, crc, onlyNew)
		})
	}
	s.j.add(line{Name: name, Begun: &begun{}}) // a kill may come before the answer
	o, err := put(onlyNew)
	if errors.Is(err, errors.ErrUnsupported) && onlyNew {
		o, err = put(false)
	}
	if errors.Is(err, fs.ErrExist) { // perhaps by an attempt whose answer was lost
		return s.adoptNamed(ctx, f)
	}
	if err != nil {
		return fmt.Errorf("store %q: %w", name, err)
	}
	s.j.add(line{Name: name, Stored: &stored{Size: f.Size, ETag: o.ETag}})
	return nil
}

// adoptNamed takes an object that is there for the file, or says that it is somebody else's.
func (s *sending) adoptNamed(ctx context.Context, f *checkpoint.File) error {
	name := s.name(f)
	var o s3origin.Stored
	err := s.d.try(ctx, func(ctx context.Context, _ func()) (err error) {
		o, err = s.d.bucket.Stat(ctx, name)
		return err
	})
	if err != nil {
		return fmt.Errorf("look at %q: %w", name, err)
	}
	same, err := s.adopt(ctx, f, o)
	if err == nil && !same {
		s.j.add(line{Name: name, Forget: true}) // it is not ours to remove
		err = fmt.Errorf("%w: object %q came while the file was sent, and has other bytes: another volume may drain to this place", ErrForeign, name)
	}
	return err
}

// attempt sends a stretch of a file by do, and compares the server's answer with the file.
func (s *sending) attempt(ctx context.Context, f *checkpoint.File, off, n int64, do func(context.Context, io.Reader, string) (s3origin.Stored, error)) (o s3origin.Stored, err error) {
	first, end := off/checkpoint.Chunk, (off+n+checkpoint.Chunk-1)/checkpoint.Chunk
	crc := written(s.d.combiner.of(f.Sums[first:end], n))
	leave, err := s.d.pace.enter(ctx)
	if err != nil {
		return o, context.Cause(ctx)
	}
	defer leave()
	buf := s.chunk()
	defer s.free(buf)
	err = s.d.try(ctx, func(ctx context.Context, alive func()) error {
		file, err := s.c.OpenFile(f)
		if err != nil {
			return localError{fmt.Errorf("file %q: %w", f.Name, err)}
		}
		defer func() { _ = file.Close() }() // opened for reading
		mode := s.d.sums.Load()
		b := &body{ctx: ctx, reader: &s.d.reader, file: file, of: f, at: off, end: off + n, buf: buf, pace: s.d.pace, alive: alive}
		if mode != sumsCRC {
			b.hash = md5.New()
		}
		given := crc
		if mode == sumsMD5 {
			given = ""
		}
		request, end := settled(ctx)
		defer end()
		o, err = do(request, b, given)
		b.stop()
		switch {
		case b.err != nil:
			return localError{b.err}
		case err != nil:
			return err
		case b.at != b.end || len(b.rest) > 0:
			return fmt.Errorf("%w: it says that it has all, and %d bytes were not sent", fetch.ErrLie, b.end-b.at+int64(len(b.rest)))
		}
		return s.d.check(&o, crc, b.hash)
	})
	if err == nil {
		s.d.counts.sent.Add(n)
		s.it.done.Add(n)
	}
	return o, err
}

// How a server shows that it has the bytes that were sent.
const (
	sumsUnknown = iota
	sumsCRC     // it answers the CRC-32C, which it has compared
	sumsMD5     // its ETag is the MD5
)

// check compares a server's answer to one request with the bytes.
func (d *Drain) check(o *s3origin.Stored, crc string, sum hash.Hash) error {
	switch {
	case o.ETag == "":
		return fmt.Errorf("%w: it gives no ETag", fetch.ErrLie)
	case o.CRC32C == crc:
		d.sums.CompareAndSwap(sumsUnknown, sumsCRC)
		return nil
	case o.CRC32C != "":
		return fmt.Errorf("%w: it has bytes of CRC-32C %.30s, and %s were sent", fetch.ErrLie, o.CRC32C, crc)
	case sum == nil:
		d.sums.Store(sumsUnknown)
		return errors.New("the server no longer answers with the CRC-32C of what it stores")
	}
	if want := fmt.Sprintf("%x", sum.Sum(nil)); o.ETag != want {
		return fmt.Errorf("%w: it answers no CRC-32C, and the ETag %.80q, where the MD5 is %s: what it stores cannot be compared", fetch.ErrLie, o.ETag, want)
	}
	d.sums.CompareAndSwap(sumsUnknown, sumsMD5)
	return nil
}

// confirm compares one listing with all that was stored.
func (s *sending) confirm(ctx context.Context) error {
	if err := s.look(ctx); err != nil {
		return err
	}
	for i := range s.c.Manifest.Files {
		f := &s.c.Manifest.Files[i]
		name := s.name(f)
		known, ok := s.j.stored(name)
		object, there := s.there[name]
		if ok && there && object.Size == f.Size && object.ETag == known.ETag {
			continue
		}
		s.j.add(line{Name: name, Forget: true})
		if !there {
			return fmt.Errorf("%w: object %q was stored, and is not listed", errAgain, name)
		}
		return fmt.Errorf("%w: object %q was stored with the ETag %.80q, and is listed with %.80q and %d bytes", errAgain, name, known.ETag, object.ETag, object.Size)
	}
	if s.c.Manifest.Part.Of == 1 {
		return s.refuseForeign()
	}
	return nil
}

// publish stores the manifest, which makes the checkpoint one, and reads it back.
func (s *sending) publish(ctx context.Context) error {
	err := s.d.putSmall(ctx, s.prefix()+checkpoint.ManifestName, s.text, true)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("store the manifest: %w", err)
	}
	return s.compareManifest(ctx)
}

// compareManifest takes the checkpoint that is there for this one, or says that it is another.
func (s *sending) compareManifest(ctx context.Context) error {
	found, err := s.manifest(ctx)
	if err != nil {
		return err
	}
	if !bytes.Equal(found, s.text) {
		return fmt.Errorf("%w: another checkpoint %q is complete there, and is never overwritten: remove it there, or name another place", ErrForeign, s.it.name)
	}
	s.isRemote(int64(len(found)))
	return nil
}

func (s *sending) manifest(ctx context.Context) (text []byte, err error) {
	err = s.d.try(ctx, func(ctx context.Context, alive func()) (err error) {
		defer s.d.keepAlive(alive, slowest(checkpoint.MostManifest))() // it may be large
		text, err = s.d.bucket.Get(ctx, s.prefix()+checkpoint.ManifestName, checkpoint.MostManifest)
		return err
	})
	return text, err
}

func (s *sending) isRemote(size int64) {
	s.it.done.Store(s.c.Manifest.Size())
	s.j.add(line{Remote: &remote{Size: size}})
}

// putSmall stores a small object, and compares it.
func (d *Drain) putSmall(ctx context.Context, name string, text []byte, onlyNew bool) error {
	crc, sum := smallSums(text)
	put := func(onlyNew bool) error {
		return d.try(ctx, func(ctx context.Context, alive func()) (err error) {
			defer d.keepAlive(alive, slowest(int64(len(text))))() // a manifest may be large
			given := crc
			if d.sums.Load() == sumsMD5 {
				given = ""
			}
			o, err := d.bucket.Put(ctx, name, bytes.NewReader(text), int64(len(text)), given, onlyNew)
			if err != nil {
				return err
			}
			return d.check(&o, crc, sum())
		})
	}
	err := put(onlyNew)
	if onlyNew && errors.Is(err, errors.ErrUnsupported) { // a store without conditional writes: who wrote is seen by reading back
		err = put(false)
	}
	return err
}

// list gives the objects below a prefix.
func (d *Drain) list(ctx context.Context, prefix string) (objects []s3origin.Stored, err error) {
	err = d.try(ctx, func(ctx context.Context, alive func()) (err error) {
		objects, _, err = d.bucket.List(ctx, prefix, false, alive)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", strings.TrimSuffix(prefix, "/"), err)
	}
	return objects, nil
}

// chunk gives a buffer of a chunk.
func (s *sending) chunk() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.chunks); n > 0 {
		b := s.chunks[n-1]
		s.chunks = s.chunks[:n-1]
		return b
	}
	return make([]byte, checkpoint.Chunk)
}

func (s *sending) free(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chunks = append(s.chunks, b)
}
