package decode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/trace"
)

const (
	maxPlain = 1 << 40 // bytes of a decoded file
	maxRatio = 1 << 15 // of decoded to stored bytes: the most that zstd's blocks can reach
	maxRead  = 4 << 20 // bytes of frames that are read together
	headSize = 14 + 3  // of a zstd frame and its first block, at most
	gzipName = ".gz"   // which is not decoded
	zstdName = ".zst"  // as zstd names what it writes
	zstdLong = ".zstd" // as some others do
	asStored = "it is shown as it is stored: "
)

// AddFiles replaces, in the listing that x was made of, files in zstd that no index names, NAME.zst, by what they decode
// to, NAME. It reads the beginning and the end of each. What cannot be shown exactly stays as it is stored, and the
// listing gets a problem that says why. The error is that a file could not be read.
//
// A file with a seek table (facebook/zstd, contrib/seekable_format) is decoded frame by frame, where it is read. Another
// one comes as a whole, with the size that its frame has written down: a file of several frames without a table, as
// concatenating makes them, cannot be told from it before it is decoded, and then fails with [cache.ErrDamaged].
func (x *Origin) AddFiles(ctx context.Context, l *cache.Listing) error {
	var found []*layout.Object
	for _, o := range l.Objects {
		if _, own := x.of[o]; !own && !x.named[o] && (bareName(o.Name) != "" || strings.HasSuffix(o.Name, gzipName)) {
			found = append(found, o)
		}
	}
	looked := make([]known, len(found))
	g, limited := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, o := range found {
		g.Go(func() (err error) {
			if looked[i], err = look(limited, o); err != nil {
				err = fmt.Errorf("read %q, to see what it decodes to: %w", o.Name, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
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
		x.of[d] = stored{zip: o, codec: codec{decode: unzstd}, frames: k.frames}
		w.objects[name], hidden[o] = d, true
		made = append(made, d)
	}
	w.replace(hidden, made)
	return nil
}

// bareName is the name of what a file decodes to, "" if it is none in zstd.
func bareName(name string) string {
	for _, end := range []string{zstdName, zstdLong} {
		if bare, ok := strings.CutSuffix(name, end); ok && path.Base(name) != end {
			return bare
		}
	}
	return ""
}

// known is what can be known of a compressed file without decoding it.
type known struct {
	size   int64
	frames *frames // nil where it comes as a whole
	why    string  // it is not decoded
}

// look reads the beginning and the end of a file.
func look(ctx context.Context, o *layout.Object) (k known, err error) {
	if strings.HasSuffix(o.Name, gzipName) {
		return known{why: "gzip does not say how long its content is: compress it with zstd"}, nil
	}
	head, err := part(ctx, o, 0, min(o.Size, headSize))
	if errors.Is(err, fs.ErrPermission) {
		return known{why: "it may not be read"}, nil
	}
	var list []frame
	if err == nil {
		list, err = readSeekTable(ctx, o)
	}
	if err != nil {
		return known{}, err
	}
	var h zstd.Header
	switch err := h.Decode(head); {
	case err != nil:
		return known{why: "it does not begin as zstd does"}, nil
	case h.DictionaryID != 0:
		return known{why: "it needs a dictionary"}, nil
	case len(list) > 0:
		f := newFrames(list)
		return known{size: f.size(), frames: f}, nil
	case h.Skippable:
		return known{why: "it has several frames, and no seek table that says how long each is"}, nil
	case !h.HasFCS:
		return known{why: "it does not say how long its content is: zstd writes that for a file that it is given by its name, and not for what comes through a pipe"}, nil
	case h.FrameContentSize > maxPlain || int64(h.FrameContentSize)/maxRatio > o.Size:
		return known{why: fmt.Sprintf("it says that its content has %d bytes, which cannot be", h.FrameContentSize)}, nil
	case h.WindowSize > maxWindow, h.SingleSegment && h.FrameContentSize > maxWindow:
		return known{why: "decoding it takes more than 128 MiB of memory: compress it without --ultra and --long"}, nil
	}
	return known{size: int64(h.FrameContentSize)}, nil
}

// frames is where the frames of a file lie, and what they decode to.
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

// fetch decodes the frames that have [off, off+n) and hands that on. What is wrong with a frame is read once more.
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
func (x *Origin) fetchFrames(ctx context.Context, from *stored, off, n int64, sink func([]byte) error) error {
	if err := x.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer x.slots.Release(1)
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
	slices.SortFunc(l.Objects, byName)
}
