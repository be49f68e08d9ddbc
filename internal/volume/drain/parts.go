package drain

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// A checkpoint whose nodes keep parts of it on disks of their own is one checkpoint in the bucket. It has the files of all parts,
// and one manifest of part 0 of 1. Nodes talk below StateName/NAME/ there:
//
//	I-of-N.claim-VOLUME    the volume sends this part
//	I-of-N.manifest        the part is there; these are its files
//	I-of-N.agrees-DIGEST   its node has seen these N manifests, and its own part is still what it has on disk
//
// A node that sees N agreements to the same N manifests stores the checkpoint's manifest. Agreements keep parts of two attempts at one
// step apart. A node publishes its part when all nodes have written theirs. So none of them still has a part of an earlier attempt,
// and would agree to it.

// waitingError names the parts that a part waits for.
type waitingError struct{ text string }

func (w *waitingError) Error() string { return w.text }

func stateOf(name string) string { return StateName + "/" + name + "/" }

func partName(p checkpoint.Part) string { return fmt.Sprintf("%d-of-%d", p.Index, p.Of) }

// said are nodes' messages about a checkpoint.
type said struct {
	claims  map[string][]string        // volumes, by part
	records map[string]s3origin.Stored // by part
	agrees  map[string][]string        // digests, by part
}

func (d *Drain) hear(ctx context.Context, name string) (*said, error) {
	objects, err := d.list(ctx, stateOf(name))
	if err != nil {
		return nil, err
	}
	h := &said{map[string][]string{}, map[string]s3origin.Stored{}, map[string][]string{}}
	for _, o := range objects {
		part, rest, _ := strings.Cut(strings.TrimPrefix(o.Name, stateOf(name)), ".")
		switch what, of, _ := strings.Cut(rest, "-"); what {
		case "claim":
			h.claims[part] = append(h.claims[part], of)
		case "manifest":
			h.records[part] = o
		case "agrees":
			h.agrees[part] = append(h.agrees[part], of)
		}
	}
	return h, nil
}

// claimPart says that this volume sends its part, and refuses a part that another volume sends.
func (s *sending) claimPart(ctx context.Context) error {
	part := partName(s.c.Manifest.Part)
	mine := stateOf(s.it.name) + part + ".claim-"
	for _, again := range []bool{false, true} {
		h, err := s.d.hear(ctx, s.it.name)
		if err != nil {
			return err
		}
		for _, volume := range h.claims[part] {
			switch {
			case volume == s.d.state.volume || again && volume > s.d.state.volume: // of two at once the smaller goes on
			case s.d.opt.TakeOver:
				if err := s.d.remove(ctx, mine+volume); err != nil {
					return err
				}
			default:
				return fmt.Errorf("%w: another volume drains part %s of it to this place: take it over (--take-over) where that is gone for good, or name another place", ErrForeign, part)
			}
		}
		if again || slices.Contains(h.claims[part], s.d.state.volume) {
			return nil
		}
		if err := s.d.putSmall(ctx, mine+s.d.state.volume, []byte("claimed\n"), false); err != nil {
			return err
		}
	}
	return nil
}

// record tells the other nodes that this part is there.
func (s *sending) record(ctx context.Context) error {
	m := *s.c.Manifest
	m.Files = slices.Clone(m.Files)
	for i := range m.Files {
		m.Files[i].Name = strings.TrimPrefix(s.name(&s.c.Manifest.Files[i]), s.prefix())
	}
	text, err := m.Text()
	if err == nil {
		err = s.d.putSmall(ctx, stateOf(s.it.name)+partName(m.Part)+".manifest", text, false)
	}
	if err != nil {
		return fmt.Errorf("tell the other nodes of this part: %w", err)
	}
	return nil
}

// agree tells the other nodes that this part is there, and makes the checkpoint complete when all are.
func (s *sending) agree(ctx context.Context) error {
	if !s.it.recorded {
		if err := s.record(ctx); err != nil {
			return err
		}
		s.it.recorded = true
	}
	h, err := s.d.hear(ctx, s.it.name)
	if err != nil {
		return err
	}
	parts, digest, err := s.heard(h)
	if err != nil {
		return err
	}
	mine := partName(s.c.Manifest.Part)
	if !slices.Contains(h.agrees[mine], digest) {
		if err := s.confirm(ctx); err != nil {
			return err
		}
		if err := s.current(); err != nil {
			return err
		}
		for _, old := range h.agrees[mine] {
			if err := s.d.remove(ctx, stateOf(s.it.name)+mine+".agrees-"+old); err != nil {
				return err
			}
		}
		if err := s.d.putSmall(ctx, stateOf(s.it.name)+mine+".agrees-"+digest, []byte("agreed\n"), false); err != nil {
			return err
		}
		if h, err = s.d.hear(ctx, s.it.name); err != nil {
			return err
		}
	}
	var silent []string
	for _, part := range parts {
		if !slices.Contains(h.agrees[part], digest) {
			silent = append(silent, part)
		}
	}
	if len(silent) > 0 {
		return &waitingError{"its part is at the destination, and so are the others; it waits for the word of the nodes of " + strings.Join(silent, ", ")}
	}
	return s.merge(ctx, parts)
}

// heard gives all parts, and a digest of the nodes' manifests.
func (s *sending) heard(h *said) (parts []string, digest string, err error) {
	var missing []string
	sum := sha256.New()
	for i := range s.c.Manifest.Part.Of {
		part := partName(checkpoint.Part{Index: i, Of: s.c.Manifest.Part.Of})
		parts = append(parts, part)
		o, ok := h.records[part]
		if !ok {
			missing = append(missing, fmt.Sprint(i+1))
		}
		fmt.Fprintf(sum, "%s %s %d\n", part, o.ETag, o.Size)
	}
	if len(missing) > 0 {
		const most = 10
		more := ""
		if len(missing) > most {
			missing, more = missing[:most], fmt.Sprintf(" and %d more", len(missing)-most)
		}
		return nil, "", &waitingError{fmt.Sprintf("part %d of %d is at the destination; it waits for part %s%s of other nodes", s.c.Manifest.Part.Index+1, s.c.Manifest.Part.Of, strings.Join(missing, ", "), more)}
	}
	return parts, hex.EncodeToString(sum.Sum(nil)[:16]), nil
}

// current refuses to speak for a part that is no longer on disk.
func (s *sending) current() error {
	c, err := checkpoint.Open(s.c.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, checkpoint.ErrNone) {
		return ErrLost
	}
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // opened for reading
	text, err := c.ManifestText()
	if err == nil && string(text) != string(s.text) {
		return ErrLost
	}
	return err
}

// merge stores the manifest of a checkpoint whose parts are all there.
func (s *sending) merge(ctx context.Context, parts []string) error {
	all := checkpoint.Manifest{Name: s.it.name, Part: checkpoint.Part{Of: 1}}
	seen := map[string]*checkpoint.File{}
	for i, part := range parts {
		var text []byte
		err := s.d.try(ctx, func(ctx context.Context, _ func()) (err error) {
			text, err = s.d.bucket.Get(ctx, stateOf(s.it.name)+part+".manifest", checkpoint.MostManifest)
			return err
		})
		if s3origin.IsAbsent(err) {
			return &waitingError{"another node makes it complete"}
		}
		if err != nil {
			return fmt.Errorf("read what node %s says: %w", part, err)
		}
		m, err := checkpoint.ParseManifest(text)
		if err != nil || m.Part != (checkpoint.Part{Index: i, Of: len(parts)}) {
			return fmt.Errorf("%w: object %q is none of a node's: %w", ErrForeign, part+".manifest", cmp.Or(err, errors.New("it is of another part")))
		}
		if m.Created.After(all.Created) {
			all.Created = m.Created
		}
		all.Dirs = append(all.Dirs, m.Dirs...)
		for i := range m.Files {
			f := &m.Files[i]
			if was := seen[f.Name]; was == nil {
				seen[f.Name] = f
				all.Files = append(all.Files, *f)
			} else if !equal(was, f) {
				return fmt.Errorf("%w: two nodes have a file %q, of different bytes: give them names of their own", ErrForeign, f.Name)
			}
		}
	}
	all.Dirs = checkpoint.EmptyDirs(all.Dirs, all.Files)
	for i := range all.Files {
		if o, ok := s.there[s.prefix()+all.Files[i].Name]; s.there != nil && ok && o.Size != all.Files[i].Size {
			return fmt.Errorf("%w: object %q has %d bytes", errAgain, o.Name, o.Size)
		}
	}
	text, err := all.Text()
	if err != nil {
		return err
	}
	err = s.d.putSmall(ctx, s.prefix()+checkpoint.ManifestName, text, true)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("store the manifest: %w", err)
	}
	return s.compareMerged(ctx)
}

func equal(a, b *checkpoint.File) bool { return a.Size == b.Size && slices.Equal(a.Sums, b.Sums) }

// compareMerged sees whether the checkpoint that is complete there has this part.
func (s *sending) compareMerged(ctx context.Context) error {
	text, err := s.manifest(ctx)
	if err != nil {
		return err
	}
	m, err := checkpoint.ParseManifest(text)
	if err != nil {
		return fmt.Errorf("%w: the manifest there: %w", ErrForeign, err)
	}
	there := make(map[string]*checkpoint.File, len(m.Files))
	for i := range m.Files {
		there[s.prefix()+m.Files[i].Name] = &m.Files[i]
	}
	for i := range s.c.Manifest.Files {
		f := &s.c.Manifest.Files[i]
		if found := there[s.name(f)]; found == nil || !equal(found, f) {
			return fmt.Errorf("%w: another checkpoint %q is complete there, and is never overwritten: remove it there, or name another place", ErrForeign, s.it.name)
		}
	}
	s.isRemote(int64(len(text)))
	if err := s.d.forgetPart(ctx, s.it.name); err != nil {
		s.d.log.Warn("what nodes said of a checkpoint stays at the destination", "checkpoint", s.it.name, "error", err)
	}
	return nil
}

// forgetPart takes back this volume's messages about a checkpoint: those of parts that it claims.
func (d *Drain) forgetPart(ctx context.Context, name string) error {
	h, err := d.hear(ctx, name)
	if err != nil {
		return err
	}
	for part, volumes := range h.claims {
		if !slices.Contains(volumes, d.state.volume) {
			continue
		}
		all := []string{".manifest"}
		for _, digest := range h.agrees[part] {
			all = append(all, ".agrees-"+digest)
		}
		for _, what := range append(all, ".claim-"+d.state.volume) {
			if err := d.remove(ctx, stateOf(name)+part+what); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Drain) remove(ctx context.Context, name string) error {
	err := d.try(ctx, func(ctx context.Context, _ func()) error { return d.bucket.Delete(ctx, name) })
	if err != nil {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	return nil
}
