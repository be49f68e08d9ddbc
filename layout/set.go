package layout

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Set is a group of shards that a loader reads as one stream: one directory, one format, one split.
type Set struct {
	Format string // megatron, mds, safetensors, ...
	Dir    string // directory of the shards, "" for the root
	Split  string // train, val, ... when the directory holds several, "" otherwise
	DType  DType  // of the tokens; DTypeUnknown where the set holds none, or several types
	// Guessed: nothing but the values shows the DType.
	Guessed bool
	Shards  []*Shard
	// Notes tells facts that no number shows, such as the flavour of a header.
	Notes []string
	// NoTokens says why no view of the token stream is possible; empty where one is.
	NoTokens string
	// NoDocuments says why the document boundaries are not known; empty where they are.
	NoDocuments string

	// joined are views of this set's own, beside those that every token set has.
	joined []View
	// entries, if set, replaces the views of the token stream: for formats of members or tensors.
	entries func(s *Set) []View
	// summarize, if set, adds notes that are only known when all shards are resolved.
	summarize func(s *Set)

	volume    *Volume
	viewDir   string // where the views lie, when Dir and Split are not enough to tell sets apart
	resolving chan struct{}
	resolved  bool         // guarded by resolving
	mu        sync.RWMutex // guards stream, and the shards' contents but Name and Objects: others count and list while one resolves
	stream    *Body        // all tokens, once a view has asked for them
	fields    *fieldsOf    // guarded by resolving; nil until a view has asked for them
	// noFields says why the fields of the samples are not shown; guarded by resolving once the set is formed.
	noFields string
}

// Shard is one piece of a set: usually one object with its index, sometimes one object that was cut into pieces.
type Shard struct {
	Name    string    // of the first data object
	Objects []*Object // data objects first, then indexes
	Tokens  int64     // elements, -1 until resolved
	Documents,
	Samples int64 // -1 where the format knows none, or until resolved
	// Data is where the tokens lie, headers left out. Empty until resolved.
	Data Body
	// Index tells where documents begin; nil where the format does not say, or until resolved.
	Index DocumentIndex
	// Bad says why the shard cannot be used, "" when it can. Its objects are still served as they are.
	Bad string
	// NoTokens says why the tokens of a sound shard make no stream, "" when they do or until resolved.
	NoTokens string
	// NoDocuments says why Index is not to be used, though the format has one; "" when it is, or until resolved.
	NoDocuments string

	// resolve, if set, fills in the fields that the probe could not. An [*AbsentError] becomes the shard's NoTokens,
	// any other error makes it bad.
	resolve func(ctx context.Context, s *Shard) error
	// check, if set, reads the shard's index in full and reports mistakes in it, for inspect. An error is a
	// finding that makes the shard bad.
	check func(ctx context.Context, s *Shard) error
	// findFields, if set, finds the fields of the shard's samples. A corrupt shard becomes bad. Other errors are those of reading, which
	// a later call may not meet.
	findFields func(ctx context.Context, s *Shard) (*fieldsOf, error)
	fields     *fieldsOf // until those of the set are known
}

// newShard returns a shard of one data object about which nothing is known yet.
func newShard(o *Object, indexes ...*Object) *Shard {
	return &Shard{Name: o.Name, Objects: append([]*Object{o}, indexes...), Tokens: -1, Documents: -1, Samples: -1}
}

// corrupt is the error of a shard whose bytes break its format.
type corrupt struct {
	object *Object
	offset int64
	detail string
}

func (c *corrupt) Error() string {
	return fmt.Sprintf("%s: at %d: %s", c.object.Name, c.offset, c.detail)
}

// readError is an error of reading a shard, which says nothing of the shard.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }

// corruptf makes the error by which resolve and check report a mistake, and its place.
func corruptf(o *Object, off int64, format string, args ...any) error {
	return &corrupt{o, off, fmt.Sprintf(format, args...)}
}

// ViewDir returns the directory of the set's views below .hbmfs/views, "" for that directory itself.
func (s *Set) ViewDir() string {
	if s.viewDir != "" {
		return s.viewDir
	}
	return path.Join(s.Dir, s.Split)
}

// Tokens returns the set's tokens, -1 when a shard does not tell (before Resolve, or for good).
func (s *Set) Tokens() int64 { return s.sum(func(h *Shard) int64 { return h.Tokens }) }

// Documents returns the set's documents, -1 as for Tokens.
func (s *Set) Documents() int64 { return s.sum(func(h *Shard) int64 { return h.Documents }) }

// Samples returns the set's samples, -1 as for Tokens.
func (s *Set) Samples() int64 { return s.sum(func(h *Shard) int64 { return h.Samples }) }

func (s *Set) sum(of func(*Shard) int64) int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	total := int64(0)
	for _, h := range s.Shards {
		n := of(h)
		if n < 0 {
			return -1
		}
		total += n
	}
	return total
}

// Bad returns the first bad shard, or nil.
func (s *Set) Bad() *Shard {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, h := range s.Shards {
		if h.Bad != "" {
			return h
		}
	}
	return nil
}

// Resolve reads the data that views need beyond the heads: offset tables, record batches, document lists. It works
// once; later calls return at once. A mistake in a shard becomes a Problem and makes the shard bad: the error is ctx's
// alone.
func (s *Set) Resolve(ctx context.Context) error {
	select {
	case s.resolving <- struct{}{}:
		defer func() { <-s.resolving }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.resolved {
		return nil
	}
	var err error
	if s.NeedsReading() {
		err = s.each(ctx, resolveShard, (*Shard).resolveAs, nil)
	}
	s.resolved = err == nil
	if s.resolved && s.summarize != nil {
		s.summarize(s)
	}
	return err
}

// NeedsReading reports whether Resolve has indexes to read.
func (s *Set) NeedsReading() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(s.Shards, func(h *Shard) bool { return h.resolve != nil })
}

func resolveShard(ctx context.Context, h *Shard) error {
	if h.resolve == nil {
		return nil
	}
	err := h.resolve(ctx, h)
	if gone, ok := errors.AsType[*AbsentError](err); ok {
		h.NoTokens, err = gone.Why, nil
	}
	if err == nil {
		h.resolve = nil
	}
	return err
}

// Check resolves the set and reads every index in full. progress, if not nil, hears after each shard how many are done;
// it is called from several goroutines. The error is ctx's alone: findings are Problems of the volume. Views are made before or after Check: it
// changes shards that they read.
func (s *Set) Check(ctx context.Context, progress func()) error {
	if err := s.Resolve(ctx); err != nil {
		return err
	}
	return s.each(ctx, func(ctx context.Context, h *Shard) error {
		if h.check == nil || h.Bad != "" {
			return nil
		}
		return h.check(ctx, h)
	}, (*Shard).resolveAs, progress)
}

// resolveAs takes what resolve and check find out. The rest never changes, so that views are listed meanwhile.
func (h *Shard) resolveAs(done *Shard) {
	h.Tokens, h.Documents, h.Samples, h.Data, h.Index = done.Tokens, done.Documents, done.Samples, done.Data, done.Index
	h.Bad, h.NoTokens, h.NoDocuments, h.resolve, h.check = done.Bad, done.NoTokens, done.NoDocuments, done.resolve, done.check
}

// takeFields takes what findFields finds out. Views of the tokens read the rest meanwhile.
func (h *Shard) takeFields(done *Shard) {
	h.fields, h.Samples, h.Bad = done.fields, done.Samples, done.Bad
}

// each runs f on a copy of every shard, several at a time. The shard takes from the copy when f is done, so that an
// interrupted f leaves no trace. It makes the shards for which f fails bad, but returns the error in a [readError].
func (s *Set) each(ctx context.Context, f func(context.Context, *Shard) error, take func(h, done *Shard), progress func()) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4 * runtime.GOMAXPROCS(0))
	for _, h := range s.Shards {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			done := *h
			if err := f(ctx, &done); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if unread, ok := errors.AsType[*readError](err); ok {
					return unread.err
				}
				s.volume.bad(&done, err)
			}
			s.mu.Lock()
			take(h, &done)
			s.mu.Unlock()
			if progress != nil {
				progress()
			}
			return nil
		})
	}
	return g.Wait()
}

// bad marks a shard and records why.
func (v *Volume) bad(h *Shard, err error) {
	h.Bad = err.Error()
	v.report(h.Objects[0], err)
}

// report makes a problem of an error about o, in the place that the error names if it names one.
func (v *Volume) report(o *Object, err error) {
	if c, ok := errors.AsType[*corrupt](err); ok {
		v.problem(c.object, c.offset, "%s", c.detail)
		return
	}
	v.problem(o, 0, "%v", err)
}

// splitOf returns the split in a base name, a word between non-letters, or "". Loaders tell the parts of a dataset
// apart by these words. Shards of different splits are never one stream.
func splitOf(base string) string {
	letter := func(r rune) bool { return (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') }
	for rest := base; ; {
		begin := strings.IndexFunc(rest, letter)
		if begin < 0 {
			return ""
		}
		rest = rest[begin:]
		end := strings.IndexFunc(rest, func(r rune) bool { return !letter(r) })
		if end < 0 {
			end = len(rest)
		}
		switch word := strings.ToLower(rest[:end]); word {
		case "train", "training", "val", "valid", "validation", "test", "eval", "dev":
			return word
		}
		rest = rest[end:]
	}
}

// bySplit yields the splits in the names of members, in order of first appearance, and the members of each.
func bySplit(members []member) iter.Seq2[string, []member] {
	return func(yield func(string, []member) bool) {
		splits, groups := grouped(members, func(m member) string { return splitOf(baseOf(m.object.Name)) })
		for i, split := range splits {
			if len(splits) == 1 { // nothing to tell apart
				split = ""
			}
			if !yield(split, groups[i]) {
				return
			}
		}
	}
}

// grouped returns the keys of items, in order of first appearance, and the items of each.
func grouped[K comparable, T any](items []T, keyOf func(T) K) (keys []K, groups [][]T) {
	at := map[K]int{}
	for _, item := range items {
		key := keyOf(item)
		i, known := at[key]
		if !known {
			i, at[key] = len(keys), len(keys)
			keys, groups = append(keys, key), append(groups, nil)
		}
		groups[i] = append(groups[i], item)
	}
	return keys, groups
}

// typedShard is a shard with the type of its elements: DTypeUnknown when it is bad, or empty and without a type.
type typedShard struct {
	shard *Shard
	dtype DType
}

// addByType makes a set of each element type among the shards, in order of first appearance. Shards of unknown type
// join the first set, so that its stream is not shown without them.
func (d *directory) addByType(split string, shards []typedShard) []*Set {
	var dtypes []DType
	for _, t := range shards {
		if t.dtype != DTypeUnknown && !slices.Contains(dtypes, t.dtype) {
			dtypes = append(dtypes, t.dtype)
		}
	}
	if len(dtypes) == 0 && len(shards) > 0 {
		dtypes = []DType{DTypeUnknown}
	}
	var sets []*Set
	for i, dtype := range dtypes {
		var of []*Shard
		for _, t := range shards {
			if t.dtype == dtype || (i == 0 && t.dtype == DTypeUnknown) {
				of = append(of, t.shard)
			}
		}
		sets = append(sets, d.add(split, dtype, of))
	}
	return sets
}

// note adds a note that the set does not have yet.
func (s *Set) note(text string) {
	if !slices.Contains(s.Notes, text) {
		s.Notes = append(s.Notes, text)
	}
}

// guess records that the values alone show the dtype.
func (s *Set) guess() {
	s.Guessed = true
	s.note("no header: the dtype was guessed from the values, and --dtype overrides it")
}

// Bytes returns the bytes of the objects that belong to the set, indexes included.
func (s *Set) Bytes() int64 {
	var total int64
	for _, h := range s.Shards {
		total += h.Bytes()
	}
	return total
}

// Bytes returns the bytes of the shard's objects, indexes included.
func (h *Shard) Bytes() int64 {
	var total int64
	for _, o := range h.Objects {
		total += o.Size
	}
	return total
}

// Alignment returns the largest power of two that divides every place where tokens lie contiguously: see
// [Body.Alignment]. It is 0 while no place is known, and where tokens are decoded.
func (s *Set) Alignment() int64 {
	least := int64(0)
	for _, h := range s.Shards {
		if h.Data.decoded() {
			return 0
		}
		if a := h.Data.Alignment(); h.Data.Size() > 0 && (least == 0 || a < least) {
			least = a
		}
	}
	return least
}
