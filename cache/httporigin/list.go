package httporigin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/layout"
)

// maxIndex bounds an index, bytes.
const maxIndex = 256 << 20

// index is a file that tells of others beside it.
type index struct {
	name     string
	names    func(data []byte) ([]string, error) // nil where its content names nothing
	optional bool                                // the named files may be there or not
	beside   []string                            // files that may be there as well
}

// indexes are the files that are looked for, in this order. The first that is there counts.
func indexes() []index {
	return []index{
		{name: layout.ManifestName, names: manifestNames},
		{name: "index.json", names: jsonIndexNames},
		{name: "model" + weightIndex, names: weightNames, beside: modelFiles()},
		{name: "model.safetensors", beside: modelFiles()},
		{name: "model_index.json", names: pipelineNames, optional: true},
	}
}

func manifestNames(data []byte) ([]string, error) {
	// Of members without a checksum, a text has more than fit into memory once they are parsed.
	if err := eachMember(data, func(_ string, dec *json.Decoder) error {
		var f struct{ SHA256 string }
		if err := dec.Decode(&f); err != nil || len(f.SHA256) == hex.EncodedLen(sha256.Size) {
			return err
		}
		return errors.New("a file of it has no sha256")
	}, "files"); err != nil {
		return nil, err
	}
	m, err := layout.ParseManifest(data)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range m.Files {
		names = append(names, m.Files[i].Name)
	}
	return names, nil
}

// jsonIndexNames reads an index.json of MosaicML Streaming or LitData.
func jsonIndexNames(data []byte) (names []string, err error) {
	type file struct {
		Basename string `json:"basename"`
	}
	err = eachMember(data, func(list string, dec *json.Decoder) error {
		var s struct {
			Raw      *file  `json:"raw_data"`
			Zip      *file  `json:"zip_data"`
			Filename string `json:"filename"`
		}
		if err := dec.Decode(&s); err != nil {
			return err
		}
		var name string
		switch { // a compressed shard need not be there uncompressed
		case list == "chunks":
			name = s.Filename
		case s.Zip != nil && s.Zip.Basename != "":
			name = s.Zip.Basename
		case s.Raw != nil:
			name = s.Raw.Basename
		default:
			return nil
		}
		if name == "" { // of these a text has more than fit into memory
			return fmt.Errorf("a member of its %s has no name", list)
		}
		names = append(names, name)
		return nil
	}, "shards", "chunks")
	return names, err
}

func weightNames(data []byte) ([]string, error) {
	names := map[string]bool{}
	err := eachMember(data, func(_ string, dec *json.Decoder) error {
		if _, err := dec.Token(); err != nil { // the weight
			return err
		}
		var name string
		err := dec.Decode(&name)
		names[name] = true
		return err
	}, "weight_map")
	return slices.Sorted(maps.Keys(names)), err
}

// eachMember calls each before each member of the lists and maps that an object has under keys. Beside the text of an
// index one member is in memory, however the index is written.
func eachMember(data []byte, each func(key string, dec *json.Decoder) error, keys ...string) error {
	if !json.Valid(data) {
		return errors.New("it is no JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return errors.New("it is no JSON object")
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		if name, _ := key.(string); !slices.Contains(keys, name) {
			if err := dec.Decode(&json.RawMessage{}); err != nil {
				return err
			}
			continue
		}
		switch start, err := dec.Token(); {
		case err != nil:
			return err
		case start == nil:
			continue
		case start != json.Delim('[') && start != json.Delim('{'):
			return fmt.Errorf("its %s are no list", key)
		}
		for dec.More() {
			if err := each(key.(string), dec); err != nil {
				return err
			}
		}
		if _, err := dec.Token(); err != nil {
			return err
		}
	}
	return nil
}

// List lists the files, and makes sure that the server serves ranges: without them every read would fail.
func (o *Site) List(ctx context.Context) (*cache.Listing, error) {
	l, err := o.list(ctx)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(l.Objects, func(f *layout.Object) bool { return f.Size > 1 }); i >= 0 && !o.ranges.Load() {
		err = o.servesRanges(ctx, l.Objects[i])
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", o, err)
	}
	return l, nil
}

// probeTime bounds the request that finds out whether a server serves ranges.
const probeTime = 5 * time.Second

// servesRanges asks once for a byte of a file that has several, and gives an error where all of it comes. Its reader
// hears of other faults.
func (o *Site) servesRanges(ctx context.Context, file *layout.Object) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	a, err := o.Get(ctx, file, 0, 1)
	if err != nil {
		return nil
	}
	_ = a.Body.Close() // one byte of it was asked for
	if err := a.Check(file, 0, 1); a.ContentLength == file.Size && errors.Is(err, fetch.ErrNoRanges) {
		return err
	}
	return nil
}

// list asks for the index, or the server's own listing where there is none, and for the size and version of every file that it names. A file that is not there becomes
// a problem; one that may not be read is denied.
func (o *Site) list(ctx context.Context) (*cache.Listing, error) {
	if o.only != "" {
		obj, err := o.stat(ctx, o.only)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, fs.ErrPermission) { // as servers say of a directory
			err = fmt.Errorf("%w; if it is a directory, write its address with a slash at its end: %s/", err, o)
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", o, err)
		}
		return cache.RemoteListing([]*layout.Object{obj}), nil
	}
	var refused error
	var known []string
	for _, x := range indexes() {
		known = append(known, x.name)
		at, err := o.stat(ctx, x.name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case errors.Is(err, fs.ErrPermission): // some servers say so of a missing file
			refused = cmp.Or(refused, err)
			continue
		case err == nil:
			var l *cache.Listing
			if l, err = o.listBy(ctx, at, x); err == nil {
				return l, nil
			}
		}
		return nil, fmt.Errorf("list %s: %w", o, err)
	}
	l, err := o.listByPages(ctx)
	switch {
	case err == nil && len(l.Objects) > 0:
		return l, nil
	case err == nil:
		return nil, fmt.Errorf("list %s: the server's listing names no file: %w", o, fs.ErrNotExist)
	case refused != nil:
		return nil, fmt.Errorf("list %s: %w", o, refused)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, errNoListing):
		return nil, fmt.Errorf("list %s: none of %s is there, and the server does not list the directory (%w): name one file, put the dataset's index beside it, or have the server list it in JSON (autoindex on; autoindex_format json; of nginx)",
			o, strings.Join(known, ", "), err)
	}
	return nil, fmt.Errorf("list %s: %w", o, err)
}

// listBy lists the files that an index tells of.
func (o *Site) listBy(ctx context.Context, at *layout.Object, x index) (*cache.Listing, error) {
	all := o.NewListing()
	named, err := o.namesIn(ctx, at, x, all)
	if err != nil {
		return nil, err
	}
	optional := x.beside
	if x.optional {
		named, optional = nil, append(named, x.beside...)
	}
	d := &directory{from: at.Name, objects: []*layout.Object{at}}
	found, failed, err := o.ask(ctx, optional)
	if err != nil {
		return nil, err
	}
	d.objects = append(d.objects, found...)
	d.lacks(failed, len(optional))
	for _, obj := range found { // of the parts of a pipeline
		if !strings.HasSuffix(obj.Name, weightIndex) {
			continue
		}
		shards, err := o.namesIn(ctx, obj, index{name: obj.Name, names: weightNames}, all)
		if err != nil {
			return nil, err
		}
		for _, name := range shards {
			named = append(named, path.Join(path.Dir(obj.Name), name))
		}
	}
	if found, failed, err = o.ask(ctx, d.unknown(named)); err != nil {
		return nil, err
	}
	d.objects = append(d.objects, found...)
	if err := d.misses(failed); err != nil {
		return nil, err
	}
	return d.listing(), nil
}

// namesIn reads the names in an index, and counts them among all.
func (o *Site) namesIn(ctx context.Context, at *layout.Object, x index, all *fetch.Listing) ([]string, error) {
	if x.names == nil {
		return nil, nil
	}
	if at.Size > maxIndex {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", x.name, at.Size, maxIndex)
	}
	data := make([]byte, at.Size)
	if n, err := o.ReadAt(ctx, at, data, 0); n < len(data) || (err != nil && !errors.Is(err, io.EOF)) {
		return nil, err
	}
	names, err := x.names(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", x.name, err)
	}
	for _, name := range names {
		if err := all.Add(name, ""); err != nil {
			return nil, err
		}
		if !fs.ValidPath(name) {
			return nil, fmt.Errorf("%s names %q, which is no path below it", x.name, name)
		}
	}
	return names, nil
}

// ask asks for files, side by side. failed are those that are not there, may not be read, or cannot be pinned to a version.
// With any other error nothing is known of them.
func (o *Site) ask(ctx context.Context, names []string) (found []*layout.Object, failed map[string]error, err error) {
	var mu sync.Mutex
	failed = map[string]error{}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Connections())
	for _, name := range names {
		g.Go(func() error {
			obj, err := o.stat(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				found = append(found, obj)
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrInvalid):
				failed[name] = err
			default:
				return err
			}
			return nil
		})
	}
	err = g.Wait()
	return found, failed, err
}
