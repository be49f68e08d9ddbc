package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/dataset"
	"github.com/hbmfs/hbmfs/layout"
)

// inspectCommand is hbmfs inspect.
type inspectCommand struct {
	source string
	format string
	dtype  string
	asJSON bool
	verify bool

	stdout, stderr io.Writer
}

func newInspectCommand() *cobra.Command {
	c := &inspectCommand{}
	names, about := layout.Formats()
	var formats strings.Builder
	for i := range names {
		fmt.Fprintf(&formats, "  %-12s %s\n", names[i], about[i])
	}
	cmd := &cobra.Command{
		Use:   "inspect SOURCE",
		Short: "Say what a dataset is, which views it has, and what is wrong with it",
		Long: `Recognize the formats of a directory or file, read their indexes in full, and list sets of shards, views, and every
problem found. The exit code is 3 when there are problems.

With --verify the bytes themselves are compared with the checksums of ` + layout.ManifestName + `, which hbmfs pack writes.

A set is what a loader reads as one stream: the shards of one directory, format, split and element type. ALIGN is the
largest power of two that divides every place where tokens begin: 4096 and more suit direct I/O.

Formats:
` + formats.String(),
		Example: "  hbmfs inspect /data/pile\n  hbmfs inspect --json /data/pile | jq '.sets[].tokens'\n  hbmfs inspect --verify /data/packed",
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.source, c.stdout, c.stderr = args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()
			return onMounts(cmd, args, c.run)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	f.BoolVar(&c.verify, "verify", false, "read all bytes and compare them with the manifest")
	f.StringVar(&c.format, "format", "", "look for this format only")
	f.StringVar(&c.dtype, "dtype", "", "element type of headerless token files: u16, u32, ...")
	return cmd
}

// inspection is the result, and the JSON that --json prints. Counts are -1 where they are not known.
type inspection struct {
	Source   string           `json:"source"`
	Objects  int              `json:"objects"`
	Bytes    int64            `json:"bytes"`
	Raw      int              `json:"raw"` // objects of no recognized format, served as they are
	Sets     []inspectedSet   `json:"sets"`
	Problems []layout.Problem `json:"problems"`
	Verified *verification    `json:"verified,omitempty"`
}

type inspectedSet struct {
	Format    string           `json:"format"`
	Dir       string           `json:"dir"`
	Split     string           `json:"split,omitempty"`
	DType     layout.DType     `json:"dtype"`
	Shards    []inspectedShard `json:"shards"`
	Bytes     int64            `json:"bytes"`
	Tokens    int64            `json:"tokens"`
	Documents int64            `json:"documents"`
	Samples   int64            `json:"samples"`
	Alignment int64            `json:"alignment"` // bytes; 0 where no token position is known
	Notes     []string         `json:"notes,omitempty"`
	Views     []inspectedView  `json:"views"`
}

type inspectedShard struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	Tokens int64  `json:"tokens"`
	Bad    string `json:"bad,omitempty"`
}

type inspectedView struct {
	Path    string `json:"path"` // below .hbmfs/views
	Size    int64  `json:"size"`
	Entries int    `json:"entries,omitempty"` // of a view that is a directory
	Absent  string `json:"absent,omitempty"`  // why there is none
}

// verification is what --verify did.
type verification struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

func (c *inspectCommand) run(ctx context.Context) error {
	opt, err := layoutOptions(c.format, c.dtype)
	if err != nil {
		return err
	}
	if dataset.IsRemote(c.source) {
		return usageError{fmt.Errorf("%s is not on this machine: mount it (hbmfs mount), and inspect the mount point", c.source)}
	}
	dir, err := cache.OpenDir(c.source, maxOpenFiles())
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // opened for reading: nothing is lost
	listing, err := dir.List(ctx)
	if err != nil {
		return err
	}
	volume, err := layout.Index(ctx, listing.Objects, opt)
	if err != nil {
		return err
	}
	result, err := c.inspect(ctx, volume)
	if err != nil {
		return err
	}
	result.Problems = append(append(result.Problems, listing.Problems...), volume.Problems()...)
	if c.verify {
		if err := c.verifyManifest(ctx, volume, result); err != nil {
			return err
		}
	}
	if err := c.print(result); err != nil {
		return err
	}
	if len(result.Problems) > 0 {
		return errProblems
	}
	return nil
}

// inspect reads all indexes and builds all views.
func (c *inspectCommand) inspect(ctx context.Context, v *layout.Volume) (*inspection, error) {
	r := &inspection{Source: c.source, Objects: len(v.Objects), Sets: []inspectedSet{}, Problems: []layout.Problem{}}
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
	r.Raw = len(v.Objects) - len(used)
	bar := newProgress(c.stderr, "checking indexes", int64(shards), false)
	defer bar.close()
	for _, s := range v.Sets {
		if err := s.Check(ctx, func() { bar.add(1) }); err != nil {
			return nil, err
		}
		r.Sets = append(r.Sets, describe(s))
	}
	for i := range v.Views {
		view, err := tryView(ctx, &v.Views[i], r)
		if err != nil {
			return nil, err
		}
		for k, s := range v.Sets {
			if s == v.Views[i].Set {
				r.Sets[k].Views = append(r.Sets[k].Views, view)
			}
		}
	}
	return r, nil
}

func describe(s *layout.Set) inspectedSet {
	out := inspectedSet{
		Format: s.Format, Dir: s.Dir, Split: s.Split, DType: s.DType, Bytes: s.Bytes(), Tokens: s.Tokens(),
		Documents: s.Documents(), Samples: s.Samples(), Alignment: s.Alignment(), Notes: s.Notes, Shards: []inspectedShard{}, Views: []inspectedView{},
	}
	for _, h := range s.Shards {
		bytes := int64(0)
		for _, o := range h.Objects {
			bytes += o.Size
		}
		out.Shards = append(out.Shards, inspectedShard{h.Name, bytes, h.Tokens, h.Bad})
	}
	return out
}

// tryView builds a view. One that its dataset does not allow is absent; one that fails for another reason is a problem.
func tryView(ctx context.Context, v *layout.View, r *inspection) (inspectedView, error) {
	out := inspectedView{Path: v.Path}
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
	if err != nil && !errors.As(err, &absent) {
		r.Problems = append(r.Problems, layout.Problem{Object: v.Path, Detail: "the view cannot be built: " + err.Error()})
	}
	return out, nil
}

// verifyManifest compares the bytes of every file of the manifest. What differs becomes a problem.
func (c *inspectCommand) verifyManifest(ctx context.Context, v *layout.Volume, r *inspection) error {
	objects := map[string]*layout.Object{}
	for _, o := range v.Objects {
		objects[o.Name] = o
	}
	o := objects[layout.ManifestName]
	if o == nil {
		return fmt.Errorf("%s has no %s to verify against: hbmfs pack writes one", c.source, layout.ManifestName)
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
	bar := newProgress(c.stderr, "verifying", total, true)
	defer bar.close()
	findings := make([]string, len(manifest.Files))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range manifest.Files {
		f := &manifest.Files[i]
		g.Go(func() error {
			defer bar.add(f.Size)
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
	r.Verified = &verification{len(manifest.Files), total}
	return nil
}

func (c *inspectCommand) print(r *inspection) error {
	if !c.asJSON {
		return printInspection(c.stdout, r)
	}
	enc := json.NewEncoder(c.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
