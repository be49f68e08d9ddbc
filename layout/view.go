package layout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// View is a file, or a directory of files, that exists nowhere at the origin. Exactly one of File and Entries is set.
// Both can be called many times, from any goroutine, and return the same each time.
type View struct {
	Path string // slash-separated, below .hbmfs/views
	// File makes the view. An [*AbsentError] says that it cannot be exact, and why.
	File func(ctx context.Context) (*File, error)
	// Entries makes the files of a directory; their names are relative to Path and may hold slashes.
	Entries func(ctx context.Context) ([]*File, error)
	// Joint says that each file of the directory is made of all shards of the set.
	Joint bool
	// Set is the set that the view is made of.
	Set *Set
}

// Exists reports whether the view can be shown. Members and tensors have a directory in any case.
func (v *View) Exists(ctx context.Context) (bool, error) {
	if v.File == nil {
		return true, nil
	}
	_, err := v.File(ctx)
	if _, ok := errors.AsType[*AbsentError](err); ok {
		return false, nil
	}
	return err == nil, err
}

// AbsentError says why a view does not exist.
type AbsentError struct{ Why string }

func (e *AbsentError) Error() string { return e.Why }

func absent(format string, args ...any) error { return &AbsentError{fmt.Sprintf(format, args...)} }

// maxRuns bounds the memory of one view's body, and of all fields of a set: some 8 bytes a run. Layouts that are regular
// stay far below it.
const maxRuns = 1 << 25

// views lists the views of all sets. Sets that would show theirs in one directory get a directory each, named by format. So does a set that has
// a view with the name of a directory with views, such as fields.
func views(v *Volume) []View {
	dirs := map[string]bool{} // that hold views, and those above them
	for _, s := range v.Sets {
		for dir := s.ViewDir(); dir != "." && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	var out []View
	taken, next := map[string]bool{}, map[string]int{} // directories and views; the number that is tried next behind a name
	for _, s := range v.Sets {
		of := s.views()
		if s.hasFields() {
			of = append(of, View{Path: "fields", Entries: s.fieldFiles, Joint: true})
		}
		free := func(dir string) bool {
			return !taken[dir] && !slices.ContainsFunc(of, func(view View) bool { return dirs[path.Join(dir, view.Path)] })
		}
		if dir := s.ViewDir(); !free(dir) {
			name := path.Join(dir, s.Format)
			s.viewDir = name
			for n := max(2, next[name]); !free(s.viewDir); n++ {
				s.viewDir, next[name] = fmt.Sprintf("%s-%d", name, n), n+1
			}
		}
		taken[s.ViewDir()], dirs[s.ViewDir()] = true, true
		for _, view := range of {
			view.Path, view.Set = path.Join(s.ViewDir(), view.Path), s
			taken[view.Path] = true
			out = append(out, view)
		}
	}
	return out
}

// views lists the set's views by their names, whether they turn out to be possible or not.
func (s *Set) views() []View {
	if s.entries != nil {
		return s.entries(s)
	}
	if s.DType == DTypeUnknown && s.NoTokens == "" {
		return nil // a format without tokens has no views of a token stream
	}
	out := []View{
		{Path: "tokens.npy", File: s.tokensNPY},
		{Path: "tokens.bin", File: s.tokensBin},
		{Path: "documents.npy", File: s.documentsNPY},
		{Path: "shards.json", File: s.shardsJSON},
		{Path: "megatron.bin", File: s.megatronBin},
		{Path: "megatron.idx", File: s.megatronIdx},
	}
	return append(out, s.joined...)
}

// usable resolves the set and says why its token stream cannot be shown, if so. A stream that lacks a shard would be a
// silent truncation. So one bad shard takes all of the set's stitched views away; the shards stay.
func (s *Set) usable(ctx context.Context) error {
	if s.NoTokens != "" {
		return absent("%s", s.NoTokens)
	}
	if err := s.Resolve(ctx); err != nil {
		return err
	}
	if bad := s.Bad(); bad != nil {
		return absent("shard %s is bad: %s", bad.Name, bad.Bad)
	}
	for _, h := range s.Shards {
		if h.NoTokens != "" {
			return absent("shard %s: %s", h.Name, h.NoTokens)
		}
	}
	return nil
}

// tokens returns the set's token stream, headers left out. It is put together once.
func (s *Set) tokens(ctx context.Context) (*Body, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		return s.stream, nil
	}
	b := &Body{}
	count := int64(0)
	for _, h := range s.Shards {
		b.AddBody(&h.Data)
		if b.Runs() > maxRuns {
			return nil, absent("the tokens lie in more than %d separate pieces: repack the dataset to read it as one stream", maxRuns)
		}
		count += h.Tokens
	}
	if want := count * int64(s.DType.Size()); b.Size() != want {
		return nil, fmt.Errorf("the shards hold %d bytes of tokens, %d are expected", b.Size(), want)
	}
	s.stream = b
	return b, nil
}

// index returns the set's document index.
func (s *Set) index(ctx context.Context) (DocumentIndex, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if s.NoDocuments != "" {
		return nil, absent("%s", s.NoDocuments)
	}
	var parts []DocumentIndex
	var tokens []int64
	for _, h := range s.Shards {
		if h.NoDocuments != "" {
			return nil, absent("shard %s: %s", h.Name, h.NoDocuments)
		}
		if h.Index == nil {
			return nil, absent("shard %s does not say where its documents begin", h.Name)
		}
		parts, tokens = append(parts, h.Index), append(tokens, h.Tokens)
	}
	return joinIndexes(parts, tokens), nil
}

// file gives a view the fields that all share.
func (s *Set) file(b Body, dtype DType, elements int64) *File {
	return &File{Body: b, DType: dtype, Tokens: elements, ModTime: newest(s.Shards...)}
}

// tokenFile is a view of the token stream.
func (s *Set) tokenFile(b Body) *File {
	f := s.file(b, s.DType, s.Tokens())
	f.Guessed = s.Guessed
	return f
}

// newest returns the latest time at which an object of the shards changed.
func newest(shards ...*Shard) time.Time {
	var newest time.Time
	for _, h := range shards {
		for _, o := range h.Objects {
			if o.ModTime.After(newest) {
				newest = o.ModTime
			}
		}
	}
	return newest
}

func (s *Set) tokensBin(ctx context.Context) (*File, error) {
	b, err := s.tokens(ctx)
	if err != nil {
		return nil, err
	}
	return s.tokenFile(*b), nil
}

func (s *Set) tokensNPY(ctx context.Context) (*File, error) {
	tokens, err := s.tokens(ctx)
	if err != nil {
		return nil, err
	}
	if s.DType.NumPy() == "" {
		return nil, absent("NumPy has no type for %s", s.DType)
	}
	var b Body
	b.addWhole(Inline(NPYHeader(s.DType, s.Tokens())))
	b.AddBody(tokens)
	return s.tokenFile(b), nil
}

// documentsNPY is an int64 array of [documents+1] positions in tokens: where each document begins, and the end.
func (s *Set) documentsNPY(ctx context.Context) (*File, error) {
	x, err := s.index(ctx)
	if err != nil {
		return nil, err
	}
	n := x.Documents() + 1
	var b Body
	b.addWhole(Inline(NPYHeader(I64, n)))
	b.addWhole(computedInt64(n, func(ctx context.Context, part []int64, first int64) error { return DocumentStarts(ctx, x, part, first) }))
	return s.file(b, I64, n), nil
}

// shardsJSON lists the shards in the order of the stream. With it a reader knows a document by its shard's name and its
// number there, which stay when shards are added.
func (s *Set) shardsJSON(ctx context.Context) (*File, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	type shard struct {
		Name      string `json:"name"`
		Tokens    int64  `json:"tokens"`
		Documents int64  `json:"documents"` // -1 where they are not known
	}
	list := make([]shard, 0, len(s.Shards))
	for _, h := range s.Shards {
		n := int64(-1)
		if h.Index != nil && h.NoDocuments == "" && s.NoDocuments == "" {
			n = h.Index.Documents()
		}
		list = append(list, shard{h.Name, h.Tokens, n})
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	var b Body
	b.addWhole(Inline(append(text, '\n')))
	return s.file(b, DTypeUnknown, -1), nil
}
