// Package inspect describes a dataset: its sets of shards, its views, and its problems.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/layout"
)

// Report is the findings, and the JSON of hbmfs inspect. Counts are -1 where they are not known.
type Report struct {
	Source   string           `json:"source"`
	Objects  int              `json:"objects"`
	Bytes    int64            `json:"bytes"`
	Raw      int              `json:"raw"` // objects of no recognized format but hbmfs-manifest.json, served as they are
	Sets     []Set            `json:"sets"`
	Problems []layout.Problem `json:"problems"`
	Hints    []layout.Hint    `json:"hints,omitempty"`
	Verified *Verification    `json:"verified,omitempty"`
}

// Set is a set of shards.
type Set struct {
	Format    string       `json:"format"`
	Dir       string       `json:"dir"`
	Split     string       `json:"split,omitempty"`
	DType     layout.DType `json:"dtype"`
	Guessed   bool         `json:"dtype_guessed,omitempty"` // from the values alone
	Shards    []Shard      `json:"shards"`
	Bytes     int64        `json:"bytes"`
	Tokens    int64        `json:"tokens"`
	Documents int64        `json:"documents"`
	Samples   int64        `json:"samples"`
	Alignment int64        `json:"alignment"` // bytes; 0 where no token position is known
	Notes     []string     `json:"notes,omitempty"`
	Views     []View       `json:"views"`

	Fields []layout.Field `json:"fields,omitempty"` // of the samples, each with the reason where it is not shown
}

// Shard is a shard of a set. Bad says why it cannot be used.
type Shard struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	Tokens int64  `json:"tokens"`
	Bad    string `json:"bad,omitempty"`
}

// View is a view of a set.
type View struct {
	Path    string `json:"path"` // below .hbmfs/views
	Size    int64  `json:"size"`
	Entries int    `json:"entries,omitempty"` // of a view that is a directory
	Absent  string `json:"absent,omitempty"`  // why there is none
}

// Verification is how much was compared with the manifest, or with hashes that the source gave.
type Verification struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Options say how much is done.
type Options struct {
	Verify bool // compare all bytes with the manifest
	// Progress hears of each beginning part, and of its number of steps or bytes. It returns the functions that are
	// called for each, and at the end.
	Progress func(doing string, total int64, bytes bool) (add func(int64), end func())
}

// Dataset recognizes objects, reads all indexes, builds all views, and compares the bytes with opt.Verify. source is
// its name for people. Mistakes in the dataset are in the report; an error says why it could not be inspected.
func Dataset(ctx context.Context, source string, objects []*layout.Object, format layout.Options, opt Options) (*Report, error) {
	v, err := layout.Index(ctx, objects, format)
	if err != nil {
		return nil, err
	}
	r, err := opt.inspect(ctx, source, v)
	if err != nil {
		return nil, err
	}
	r.Problems, r.Hints = append(r.Problems, v.Problems()...), v.Hints()
	if opt.Verify {
		err = opt.verify(ctx, v, r)
	}
	return r, err
}

// inspect reads all indexes and builds all views.
func (opt *Options) inspect(ctx context.Context, source string, v *layout.Volume) (*Report, error) {
	r := &Report{Source: source, Objects: len(v.Objects), Sets: []Set{}, Problems: []layout.Problem{}}
	for _, o := range v.Objects {
		r.Bytes += o.Size
	}
	shards := 0
	used := map[*layout.Object]bool{}
	for _, s := range v.Sets {
		shards += len(s.Shards)
		for _, h := range s.Shards {
			for _, o := range h.Objects {
				used[o] = true
			}
		}
	}
	for _, o := range v.Objects {
		if !used[o] && path.Base(o.Name) != layout.ManifestName { // which describes the others
			r.Raw++
		}
	}
	add, end := opt.Progress("checking indexes", int64(shards), false)
	defer end()
	at := map[*layout.Set]int{}
	for i, s := range v.Sets {
		if err := s.Check(ctx, func() { add(1) }); err != nil {
			return nil, err
		}
		at[s], r.Sets = i, append(r.Sets, describe(s))
	}
	for i := range v.Views {
		view, err := tryView(ctx, &v.Views[i], r)
		if err != nil {
			return nil, err
		}
		if k, ok := at[v.Views[i].Set]; ok { // a selection is no set of the dataset
			r.Sets[k].Views = append(r.Sets[k].Views, view)
		}
	}
	for i, s := range v.Sets {
		fields, err := s.Fields(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var absent *layout.AbsentError // which the view's says, too
		if r.Sets[i].Fields = fields; err != nil && !errors.As(err, &absent) {
			r.Problems = append(r.Problems, layout.Problem{Object: path.Join(s.ViewDir(), "fields"), Detail: err.Error()})
		}
	}
	return r, nil
}

func describe(s *layout.Set) Set {
	out := Set{
		Format: s.Format, Dir: s.Dir, Split: s.Split, DType: s.DType, Guessed: s.Guessed, Bytes: s.Bytes(), Tokens: s.Tokens(),
		Documents: s.Documents(), Samples: s.Samples(), Alignment: s.Alignment(), Notes: s.Notes, Shards: []Shard{}, Views: []View{},
	}
	for _, h := range s.Shards {
		out.Shards = append(out.Shards, Shard{h.Name, h.Bytes(), h.Tokens, h.Bad})
	}
	return out
}

// tryView builds a view. One that its dataset does not allow is absent; one that fails for another reason is a problem.
func tryView(ctx context.Context, v *layout.View, r *Report) (View, error) {
	out := View{Path: v.Path}
	var err error
	if v.Entries != nil {
		var files []*layout.File
		files, err = v.Entries(ctx)
		out.Entries = len(files)
		for _, f := range files {
			out.Size += f.Size()
		}
	} else {
		var file *layout.File
		if file, err = v.File(ctx); err == nil {
			out.Size = file.Size()
		}
	}
	if ctx.Err() != nil {
		return out, ctx.Err()
	}
	if err != nil {
		out.Absent = err.Error()
	}
	var absent *layout.AbsentError
	told := func(h *layout.Shard) bool { return h.Bad == out.Absent } // of an archive that is damaged
	if err != nil && !errors.As(err, &absent) && !slices.ContainsFunc(v.Set.Shards, told) {
		r.Problems = append(r.Problems, layout.Problem{Object: v.Path, Detail: "the view cannot be built: " + err.Error()})
	}
	return out, nil
}

// verifyVersions compares the bytes of every object whose version is their hash, as those of the Hugging Face Hub are.
func (opt *Options) verifyVersions(ctx context.Context, v *layout.Volume, r *Report) error {
	var objects []*layout.Object
	total := int64(0)
	for _, o := range v.Objects {
		if layout.VersionHash(o.Version, o.Size) != nil {
			objects, total = append(objects, o), total+o.Size
		}
	}
	if len(objects) == 0 {
		return fmt.Errorf("%s has no %s to verify against: hbmfs pack writes one", r.Source, layout.ManifestName)
	}
	add, end := opt.Progress("verifying", total, true)
	defer end()
	findings := make([]error, len(objects))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i, o := range objects {
		g.Go(func() error {
			defer add(o.Size)
			h := layout.VersionHash(o.Version, o.Size)
			if _, findings[i] = io.CopyBuffer(h, o.Reader(ctx), make([]byte, 4<<20)); findings[i] == nil {
				findings[i] = layout.CheckHash(o.Version, h)
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, err := range findings {
		if err != nil {
			r.Problems = append(r.Problems, layout.Problem{Object: objects[i].Name, Detail: err.Error()})
		}
	}
	r.Verified = &Verification{len(objects), total}
	return nil
}

// verify compares the bytes of every file of the manifest. A difference becomes a problem.
func (opt *Options) verify(ctx context.Context, v *layout.Volume, r *Report) error {
	objects := map[string]*layout.Object{}
	for _, o := range v.Objects {
		objects[o.Name] = o
	}
	o := objects[layout.ManifestName]
	if o == nil {
		return opt.verifyVersions(ctx, v, r)
	}
	const most = 1 << 30 // a manifest of a petabyte in 1 MiB blocks is larger, and no longer one to hold in memory
	if o.Size > most {
		return fmt.Errorf("%s has %d bytes, at most %d are read", o.Name, o.Size, most)
	}
	data := make([]byte, o.Size)
	if n, err := o.ReadAt(ctx, data, 0); int64(n) < o.Size {
		return fmt.Errorf("read %s: %w", o.Name, err)
	}
	manifest, err := layout.ParseManifest(data)
	if err != nil {
		return err
	}
	total := int64(0)
	for _, f := range manifest.Files {
		total += f.Size
	}
	add, end := opt.Progress("verifying", total, true)
	defer end()
	findings := make([]string, len(manifest.Files))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range manifest.Files {
		f := &manifest.Files[i]
		g.Go(func() error {
			defer add(f.Size)
			o := objects[f.Name]
			switch {
			case o == nil:
				findings[i] = "the manifest lists it, and it is not there"
			case o.Size != f.Size:
				findings[i] = fmt.Sprintf("it has %d bytes, the manifest says %d", o.Size, f.Size)
			default:
				if err := f.Verify(ctx, o.Reader(ctx)); err != nil {
					findings[i] = err.Error()
				}
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, detail := range findings {
		if detail != "" {
			r.Problems = append(r.Problems, layout.Problem{Object: manifest.Files[i].Name, Detail: detail})
		}
	}
	r.Verified = &Verification{len(manifest.Files), total}
	return nil
}
