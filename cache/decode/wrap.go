package decode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

const (
	indexName = "index.json"
	maxIndex  = 256 << 20 // bytes, as layout reads
	readers   = 16        // indexes that are read at once
	maxShard  = 1 << 32   // bytes of a decoded shard, which MosaicML Streaming bounds by that
)

// Indexes gives the objects of a listing that [Wrap] reads.
func Indexes(l *cache.Listing) (found []*layout.Object) {
	for _, o := range l.Objects {
		if path.Base(o.Name) == indexName && o.Size <= maxIndex {
			found = append(found, o)
		}
	}
	return found
}

// Wrap replaces compressed objects of a listing by decoded ones, and the indexes that name them. It reads every
// index.json. An object that cannot be decoded stays as it is; where an index asked for it, the listing gets a problem.
// The error is that an index could not be fetched.
func Wrap(ctx context.Context, l *cache.Listing) (*Decoded, error) {
	found := Indexes(l)
	rewrites := make([]*rewrite, len(found))
	g, limited := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, o := range found {
		g.Go(func() (err error) {
			rewrites[i], err = readRewrite(limited, o, len(l.Objects))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	x := newOrigin()
	newWrapper(l, x).apply(slices.DeleteFunc(rewrites, func(p *rewrite) bool { return p == nil }))
	return x, nil
}

// rewrite is an index that names compressed shards.
type rewrite struct {
	refused error // why it cannot be carried out, in any listing
	index   *layout.Object
	text    []byte // of the index that takes its place
	shards  []shard
}

// readRewrite reads an index of a listing of so many objects, nil if there is nothing to decode in it.
func readRewrite(ctx context.Context, o *layout.Object, objects int) (*rewrite, error) {
	text, err := part(ctx, o, 0, o.Size)
	switch {
	case errors.Is(err, fs.ErrPermission): // a user that may read it sees the shards as they are stored
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %q, to see whether its shards are compressed: %w", o.Name, err)
	}
	out, shards, err := rewriteIndex(text, objects)
	if errors.Is(err, errMany) {
		return &rewrite{refused: err, index: o}, nil
	}
	if err != nil || len(shards) == 0 { // layout says why
		return nil, nil
	}
	return &rewrite{index: o, text: out, shards: shards}, nil
}

// wrapper turns a listing into one with decoded objects.
type wrapper struct {
	listing *cache.Listing
	origin  *Decoded
	objects map[string]*layout.Object
	taken   map[string]bool // names that are directories and links
}

func newWrapper(l *cache.Listing, x *Decoded) *wrapper {
	w := &wrapper{l, x, make(map[string]*layout.Object, len(l.Objects)), map[string]bool{}}
	for _, o := range l.Objects {
		w.objects[o.Name] = o
	}
	for _, d := range l.Dirs {
		w.taken[d.Name] = true
	}
	for _, link := range l.Links {
		w.taken[link.Name] = true
	}
	return w
}

// apply decodes the objects of all rewrites that can be carried out. Two of them may name the same shards:
// merge_index of MosaicML Streaming leaves the indexes below its own.
func (w *wrapper) apply(rewrites []*rewrite) {
	made := map[string]*layout.Object{} // by name
	hidden := map[*layout.Object]bool{}
	var good, refused []*rewrite
	for _, p := range rewrites {
		fresh, err := w.decoded(p, made)
		if err != nil {
			w.listing.Problems = append(w.listing.Problems, layout.Problem{Object: p.index.Name, Detail: "its compressed shards are shown as they are stored: " + err.Error()})
			refused = append(refused, p)
			continue
		}
		for o, from := range fresh {
			made[o.Name], w.origin.of[o] = o, from
			hidden[from.zip] = true
		}
		good = append(good, p)
	}
	for _, p := range good {
		hidden[p.index] = true
		o := derived(p.index, p.index.Name, int64(len(p.text)))
		sum := sha256.Sum256(p.text)
		o.Version += "-" + hex.EncodeToString(sum[:8])
		made[o.Name], w.origin.of[o] = o, stored{text: p.text}
	}
	for _, p := range refused { // it still needs objects that another index has decoded
		for _, s := range p.shards {
			zip := w.objects[path.Join(path.Dir(p.index.Name), s.zip.Basename)]
			delete(hidden, zip)
			w.origin.named[zip] = true
		}
	}
	w.replace(hidden, slices.Collect(maps.Values(made)))
}

// decoded makes the objects that a rewrite asks for and that are not made yet, or says why it cannot be carried out.
func (w *wrapper) decoded(p *rewrite, made map[string]*layout.Object) (map[*layout.Object]stored, error) {
	fresh, names := map[*layout.Object]stored{}, map[string]bool{}
	if p.refused != nil {
		return nil, p.refused
	}
	for _, s := range p.shards {
		name, err := below(p.index, s.raw.Basename)
		if err != nil {
			return nil, err
		}
		if w.objects[name] != nil { // it is there already, decoded by somebody else
			continue
		}
		zipName, err := below(p.index, s.zip.Basename)
		if err != nil {
			return nil, err
		}
		c, err := codecOf(s.compression)
		zip := w.objects[zipName]
		dir := strings.TrimSuffix(path.Dir(name), ".")
		switch {
		case err != nil:
		case zip == nil:
			err = fmt.Errorf("the index names %q, which is not there", zipName)
		case s.zip.Bytes != zip.Size:
			err = fmt.Errorf("%q has %d bytes, the index says %d", zipName, zip.Size, s.zip.Bytes)
		case s.raw.Bytes < 0 || s.raw.Bytes > maxShard:
			err = fmt.Errorf("%q shall have %d bytes, more than a shard can have", name, s.raw.Bytes)
		case c.block && max(s.raw.Bytes, zip.Size) > maxBlock:
			err = fmt.Errorf("%q has more than the 256 MiB of a shard that are decoded in memory: write the shards with zstd", zipName)
		case w.taken[name], !w.taken[dir], names[name]:
			err = fmt.Errorf("the index names %q, where no file can be", name)
		case path.Dir(zipName) != path.Dir(name): // whose permissions another directory's may not take the place of
			err = fmt.Errorf("the index has %q decoded in another directory, as %q", zipName, name)
		}
		if err != nil {
			return nil, err
		}
		names[name] = true
		if o := made[name]; o != nil {
			if from := w.origin.of[o]; from.zip != zip || o.Size != s.raw.Bytes {
				return nil, fmt.Errorf("another index says other things of %q", name)
			}
			continue
		}
		o := derived(zip, name, s.raw.Bytes)
		o.Whole = true
		fresh[o] = stored{zip: zip, codec: c, zipHash: fastest(s.zip.Hashes), dataHash: fastest(s.raw.Hashes)}
	}
	return fresh, nil
}

// derived describes an object that is made of another one. The hash in the other one's version is not its own: see [layout.VersionHash].
func derived(from *layout.Object, name string, size int64) *layout.Object {
	o := *from
	o.Name, o.Size, o.Version = name, size, from.Version+layout.DecodedVersion
	return &o
}

// below gives the object's name for a name in an index. It must not leave the index's directory.
func below(index *layout.Object, name string) (string, error) {
	if !fs.ValidPath(name) || name == "." || strings.ContainsAny(name, "\\\x00") || len(path.Base(name)) > 255 {
		return "", fmt.Errorf("the index names %.80q, which is no name below its directory", name)
	}
	return path.Join(path.Dir(index.Name), name), nil
}
