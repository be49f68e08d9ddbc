package drain

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// List gives the checkpoints at a destination, in the order of [checkpoint.List]. One whose manifest has not come yet is in work. One is damaged
// where its objects are not those of its manifest. It makes
// one request for the names, and two for each checkpoint. The destination may be silent for so long as patience says.
func List(ctx context.Context, destination string, patience time.Duration) ([]checkpoint.Entry, error) {
	d, err := New("/", destination, Options{Patience: patience, Rate: Unlimited})
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // it has read only
	var dirs []string
	err = d.try(ctx, func(ctx context.Context, alive func()) (err error) {
		_, dirs, err = d.bucket.List(ctx, "", true, alive)
		return err
	})
	if err != nil {
		return nil, err
	}
	all := make([]checkpoint.Entry, 0, len(dirs))
	for _, dir := range dirs {
		if name := strings.TrimSuffix(dir, "/"); checkpoint.CheckName(name) == nil {
			all = append(all, checkpoint.Entry{Name: name, Path: at(destination, name), State: checkpoint.InWork, Why: "its manifest has not come yet"})
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(d.opt.Connections)
	for i := range all {
		g.Go(func() error { return d.entry(ctx, &all[i]) })
	}
	err = g.Wait()
	slices.SortFunc(all, func(a, b checkpoint.Entry) int { return checkpoint.Natural(a.Name, b.Name) })
	return all, err
}

// at is the source of a checkpoint at a destination.
func at(destination, name string) string {
	place, query, found := strings.Cut(destination, "?")
	if found {
		query = "?" + query
	}
	return strings.TrimSuffix(place, "/") + "/" + name + query
}

// entry reads the manifest of one checkpoint.
func (d *Drain) entry(ctx context.Context, e *checkpoint.Entry) error {
	var text []byte
	err := d.try(ctx, func(ctx context.Context, _ func()) (err error) {
		text, err = d.bucket.Get(ctx, e.Name+"/"+checkpoint.ManifestName, checkpoint.MostManifest)
		return err
	})
	if s3origin.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	m, err := checkpoint.ParseManifest(text)
	if err != nil {
		e.State, e.Why = checkpoint.Damaged, err.Error()
		return nil
	}
	objects, err := d.list(ctx, e.Name+"/")
	if err != nil {
		return err
	}
	there := make(map[string]int64, len(objects))
	for _, o := range objects {
		there[o.Name] = o.Size
	}
	e.State, e.Why = checkpoint.Complete, ""
	if text := m.Misfit(func(name string) (int64, bool) { n, ok := there[e.Name+"/"+name]; return n, ok }); text != "" {
		e.State, e.Why = checkpoint.Damaged, text
	}
	e.Part, e.Files, e.Size, e.Created = m.Part, len(m.Files), m.Size(), m.Created
	return nil
}
