package httporigin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// maxIndex bounds an index, bytes.
const maxIndex = 256 << 20

// index is a file that names the others of a dataset.
type index struct {
	name  string
	names func(data []byte) ([]string, error)
}

// indexes are the files that are looked for, in this order. The first that is there counts.
func indexes() []index {
	return []index{
		{layout.ManifestName, manifestNames},
		{"index.json", jsonIndexNames},
		{"model.safetensors.index.json", weightNames},
	}
}

func manifestNames(data []byte) ([]string, error) {
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

// jsonIndexNames reads what MosaicML Streaming and LitData both call index.json.
func jsonIndexNames(data []byte) ([]string, error) {
	type file struct {
		Basename string `json:"basename"`
	}
	var x struct {
		Shards []struct {
			Raw *file `json:"raw_data"`
			Zip *file `json:"zip_data"`
		} `json:"shards"`
		Chunks []struct {
			Filename string `json:"filename"`
		} `json:"chunks"`
	}
	if err := json.Unmarshal(data, &x); err != nil {
		return nil, err
	}
	var names []string
	for _, s := range x.Shards {
		switch { // a compressed shard need not be there uncompressed
		case s.Zip != nil && s.Zip.Basename != "":
			names = append(names, s.Zip.Basename)
		case s.Raw != nil:
			names = append(names, s.Raw.Basename)
		}
	}
	for _, c := range x.Chunks {
		names = append(names, c.Filename)
	}
	return names, nil
}

func weightNames(data []byte) ([]string, error) {
	var x struct {
		Map map[string]string `json:"weight_map"`
	}
	err := json.Unmarshal(data, &x)
	names := make([]string, 0, len(x.Map))
	for _, name := range x.Map {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// List asks for the index, and for the size and version of every file that it names. A file that is not there becomes
// a problem.
func (o *Origin) List(ctx context.Context) (*cache.Listing, error) {
	if o.only != "" {
		obj, err := o.stat(ctx, o.only)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", o, err)
		}
		return cache.RemoteListing([]*layout.Object{obj}), nil
	}
	for _, x := range indexes() {
		at, err := o.stat(ctx, x.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", o, err)
		}
		names, err := o.namesIn(ctx, at, x)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", o, err)
		}
		return o.statAll(ctx, at, names)
	}
	var known []string
	for _, x := range indexes() {
		known = append(known, x.name)
	}
	return nil, fmt.Errorf("list %s: a web server lists nothing, and none of %s is there: name one file, or put the dataset's index beside it", o, strings.Join(known, ", "))
}

func (o *Origin) namesIn(ctx context.Context, at *layout.Object, x index) ([]string, error) {
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
		if !fs.ValidPath(name) {
			return nil, fmt.Errorf("%s names %q, which is no path below it", x.name, name)
		}
	}
	return names, nil
}

// statAll asks for all named files at once.
func (o *Origin) statAll(ctx context.Context, at *layout.Object, names []string) (*cache.Listing, error) {
	objects := make([]*layout.Object, len(names))
	missing := make([]error, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Connections())
	for i, name := range names {
		g.Go(func() error {
			obj, err := o.stat(ctx, name)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				missing[i] = err
				return nil
			}
			objects[i] = obj
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("list %s: %w", o, err)
	}
	objects = slices.DeleteFunc(append(objects, at), func(obj *layout.Object) bool { return obj == nil })
	l := cache.RemoteListing(objects)
	for i, err := range missing {
		if err != nil {
			l.Problems = append(l.Problems, layout.Problem{Object: names[i], Detail: fmt.Sprintf("is named by %s and cannot be had: %v", at.Name, err)})
		}
	}
	return l, nil
}
