package drain

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// damageError says that stored objects of a remote checkpoint have changed.
type damageError struct{ text string }

func (e *damageError) Error() string { return e.text }

// damage compares the listing with the manifest and the journal.
func (s *sending) damage() error {
	text := s.c.Manifest.Misfit(func(name string) (int64, bool) {
		o, ok := s.there[s.name(&checkpoint.File{Name: name})]
		return o.Size, ok
	})
	if text != "" {
		return &damageError{"it was remote, and " + text}
	}
	for i := range s.c.Manifest.Files {
		name := s.name(&s.c.Manifest.Files[i])
		if known, noted := s.j.stored(name); noted && s.there[name].ETag != known.ETag {
			return &damageError{fmt.Sprintf("it was remote, and object %q was replaced", name)}
		}
	}
	return nil
}

// mend compares a checkpoint that is complete at the destination with this one, and sends lost objects again.
func (s *sending) mend(ctx context.Context) error {
	compare := s.compareManifest
	if s.c.Manifest.Part.Of > 1 {
		compare = s.compareMerged
	}
	if err := compare(ctx); err != nil {
		return err
	}
	damage := s.damage()
	if damage == nil {
		return nil
	}
	s.d.log.Error("a checkpoint is damaged at the destination, and is mended", "checkpoint", s.it.name, "error", damage)
	s.mends = true
	s.it.done.Store(0)
	if err := s.sendFiles(ctx); err != nil {
		return fmt.Errorf("%w: %w", damage, err)
	}
	if err := s.confirm(ctx); err != nil {
		return fmt.Errorf("%w: %w", damage, err)
	}
	s.d.counts.mended.Add(1)
	return nil
}

// inspect has checkpoints sent again that were remote, and whose objects were deleted or cut since.
func (d *Drain) inspect(ctx context.Context) error {
	d.mu.Lock()
	var all []*item
	for _, it := range d.items {
		if it.state == Remote && it.cancel == nil {
			all = append(all, it)
		}
	}
	d.mu.Unlock()
	for _, it := range all {
		err := d.stillThere(ctx, it, func(context.Context, *checkpoint.Checkpoint) error { return nil })
		if errors.Is(err, ErrSilent) || ctx.Err() != nil {
			return err
		}
		if err != nil {
			d.suspect(it, err)
		}
	}
	return nil
}

// suspect has a checkpoint sent again where it is damaged at the destination. Other errors say nothing of it.
func (d *Drain) suspect(it *item, err error) {
	var damage *damageError
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.As(err, &damage) && it.state == Remote {
		it.state, it.why = Local, err.Error()
		it.done.Store(0)
	}
}

// stillThere asks whether a checkpoint that became remote is: its manifest, and all objects as they were stored. It then calls do, while the
// checkpoint is open: another one may have its name by then.
func (d *Drain) stillThere(ctx context.Context, it *item, do func(context.Context, *checkpoint.Checkpoint) error) error {
	c, err := checkpoint.Open(filepath.Join(d.dir, it.name))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // opened for reading
	text, err := c.ManifestText()
	if err != nil {
		return err
	}
	j, err := d.state.journal(it.name)
	if err != nil {
		return err
	}
	defer j.close()
	end := j.remote()
	if end == nil || j.head.Manifest != digest(text) {
		return errors.New("its journal does not say that it is remote")
	}
	s := &sending{d: d, it: it, c: c, j: j}
	if err := s.look(ctx); err != nil {
		return err
	}
	if o, ok := s.there[s.prefix()+checkpoint.ManifestName]; !ok || o.Size != end.Size {
		return &damageError{"it was remote, and its manifest is no longer at the destination"}
	}
	if err := s.damage(); err != nil {
		return err
	}
	return do(ctx, c)
}
