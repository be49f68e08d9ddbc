package decode

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/layout"
)

const (
	maxPlain = 1 << 40 // bytes of a decoded file
	maxRatio = 1 << 15 // of decoded to stored bytes: the most that zstd's blocks can reach
	maxRead  = 4 << 20 // bytes of frames that are read together
	gzipName = ".gz"   // which is not decoded
	zstdName = ".zst"  // as zstd names its output
	zstdLong = ".zstd" // as some others do
	asStored = "it is shown as it is stored: "
)

// FileOptions say how [Decoded.AddFiles] learns the decoded sizes of files.
type FileOptions struct {
	Scan  int64  // bytes that may be read of one file for that, besides its beginning and end; 0 is 64 MiB
	Sizes string // the file that remembers learned sizes; "" for none
}

// Learned counts the files and bytes that [Decoded.AddFiles] had to read.
type Learned struct {
	Files int   // that had to be looked through
	Bytes int64 // that were read for that
}

// AddFiles replaces files in zstd that no index names, NAME.zst, by decoded ones, NAME, in the listing that x was made
// of. A file whose size cannot be told exactly stays as it is stored, and the listing gets a problem that says why. The
// error is that a file could not be read.
//
// A file with a seek table (facebook/zstd, contrib/seekable_format) is decoded frame by frame, where it is read. Another
// one comes as a whole. Its decoded size is learned in the cheapest way. That is its first frame if that is all of it, a
// walk over its frames and blocks if all of them say it, or decoding. opt bounds walks and decoding, and
// [Decoded.SaveSizes] remembers the sizes that they find out.
//
// Where a file is too large for a walk, and its first frame looks like the only one, that frame is trusted. If it was
// wrong, reading fails with [cache.ErrDamaged] and says so, and the next mount knows better.
func (x *Decoded) AddFiles(ctx context.Context, l *cache.Listing, opt FileOptions) (learned Learned, err error) {
	var found []*layout.Object
	for _, o := range l.Objects {
		if _, own := x.of[o]; !own && !x.named[o] && (bareName(o.Name) != "" || strings.HasSuffix(o.Name, gzipName)) {
			found = append(found, o)
		}
	}
	if opt.Scan == 0 {
		opt.Scan = defaultScan
	}
	x.sizes = openSizes(opt.Sizes)
	x.sizes.forgetOthers(found)
	looked := make([]known, len(found))
	g, limited := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, o := range found {
		g.Go(func() (err error) {
			if size, ok := x.sizes.get(o); ok {
				looked[i] = known{size: size, guess: true}
				return nil
			}
			if looked[i], err = x.learn(limited, o, opt.Scan); err != nil {
				return fmt.Errorf("read %q, to see what it decodes to: %w", o.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return learned, err
	}
	for i, k := range looked {
		if k.why == "" && k.effort > 0 {
			x.sizes.put(found[i], k.size)
		}
		if k.effort > 0 {
			learned.Files, learned.Bytes = learned.Files+1, learned.Bytes+k.effort
		}
	}
	x.show(l, found, looked)
	return learned, nil
}

// SaveSizes remembers the sizes that AddFiles has learned.
func (x *Decoded) SaveSizes() error { return x.sizes.save() }

// show replaces files by the decoded ones, as far as they are known.
func (x *Decoded) show(l *cache.Listing, found []*layout.Object, looked []known) {
	w := newWrapper(l, x)
	hidden, made := map[*layout.Object]bool{}, []*layout.Object(nil)
	for i, o := range found {
		k, name := looked[i], bareName(o.Name)
		if k.why == "" && (w.objects[name] != nil || w.taken[name]) {
			k.why = fmt.Sprintf("%q is there already", name)
		}
		if k.why != "" {
			l.Problems = append(l.Problems, layout.Problem{Object: o.Name, Detail: asStored + k.why})
			continue
		}
		d := derived(o, name, k.size)
		d.Whole = k.frames == nil
		x.of[d] = stored{zip: o, codec: codec{decode: unzstd}, frames: k.frames, guess: k.guess}
		w.objects[name], hidden[o] = d, true
		made = append(made, d)
	}
	w.replace(hidden, made)
}

// bareName is the name of the decoded file, "" for a file that is not in zstd.
func bareName(name string) string {
	for _, end := range []string{zstdName, zstdLong} {
		if bare, ok := strings.CutSuffix(name, end); ok && path.Base(name) != end {
			return bare
		}
	}
	return ""
}

// frames are the places of a file's frames, as stored and decoded.
type frames struct {
	list         []frame
	coded, plain []int64 // where each begins, and the last ends
}

func newFrames(list []frame) *frames {
	f := &frames{list: list, coded: make([]int64, len(list)+1), plain: make([]int64, len(list)+1)}
	for i, one := range list {
		f.coded[i+1], f.plain[i+1] = f.coded[i]+int64(one.coded), f.plain[i]+int64(one.plain)
	}
	return f
}

func (f *frames) size() int64 { return f.plain[len(f.list)] }

// fetch decodes the frames that have [off, off+n) and hands that on. A damaged frame is read once more.
func (f *frames) fetch(ctx context.Context, d *zstd.Decoder, zip *layout.Object, off, n int64, sink func([]byte) error) error {
	var out []byte
	first := sort.Search(len(f.list), func(i int) bool { return f.plain[i+1] > off })
	for i := first; i < len(f.list) && f.plain[i] < off+n; {
		last := i + 1
		for last < len(f.list) && f.plain[last] < off+n && f.coded[last+1]-f.coded[i] <= maxRead {
			last++
		}
		begin := f.coded[i]
		coded, err := part(ctx, zip, begin, f.coded[last]-begin)
		for again := true; err == nil && i < last; i++ {
			in := coded[f.coded[i]-begin : f.coded[i+1]-begin]
			if out, err = f.list[i].decode(d, in, out); err != nil && again {
				again = false
				if in, err = part(ctx, zip, f.coded[i], int64(len(in))); err == nil {
					out, err = f.list[i].decode(d, in, out)
				}
			}
			if err == nil {
				err = sink(out[max(0, off-f.plain[i]):min(int64(len(out)), off+n-f.plain[i])])
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decode decodes one frame into the room that out has.
func (f *frame) decode(d *zstd.Decoder, in, out []byte) ([]byte, error) {
	out, err := d.DecodeAll(in, grow(out, f.plain)[:0])
	switch {
	case err != nil:
	case len(out) != f.plain:
		err = fmt.Errorf("a frame decodes to %d bytes, the seek table says %d", len(out), f.plain)
	case f.summed && uint32(xxhash.Sum64(out)) != f.sum:
		err = errors.New("a frame does not have the checksum of the seek table")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cache.ErrDamaged, err)
	}
	return out, nil
}

// fetchFrames hands on bytes of a file that is decoded frame by frame.
func (x *Decoded) fetchFrames(ctx context.Context, from *stored, off, n int64, sink func([]byte) error) error {
	if err := x.turns.Acquire(ctx, 1); err != nil {
		return err
	}
	defer x.turns.Release(1)
	d, err := x.decoder()
	if err != nil {
		return err
	}
	ctx, span := trace.Child(ctx, "decode")
	err = from.frames.fetch(ctx, d, from.zip, off, n, sink)
	span.Text("object", from.zip.Name).Int("offset", off).Int("bytes_decoded", n).End(class(err))
	if err != nil {
		return fmt.Errorf("decode %q: %w", from.zip.Name, err)
	}
	return nil
}

// replace takes objects out of the listing, and puts others in, which are x's.
func (w *wrapper) replace(hidden map[*layout.Object]bool, made []*layout.Object) {
	l := w.listing
	for _, o := range made {
		o.Origin = w.origin
	}
	byName := func(a, b *layout.Object) int { return layout.ComparePaths(a.Name, b.Name) }
	w.origin.objects = append(w.origin.objects, made...)
	slices.SortFunc(w.origin.objects, byName)
	l.Objects = append(slices.DeleteFunc(l.Objects, func(o *layout.Object) bool { return hidden[o] }), made...)
	l.Check()
}
