package layout

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Selection is some documents of a set, shown as a set of its own: the views that the set has, of these documents alone.
// In formats of samples each sample is a document.
type Selection struct {
	Name      string  // where the views lie: the directory of the set's views, and a name below it
	Documents []int64 // numbers in the set, ascending
}

// maxSelected bounds the documents of a selection: 8 bytes each, and 8 more when its views are built.
const maxSelected = 8 << 20

// ParseSelection reads the numbers of documents, one in each line, ascending. Empty lines count for nothing.
func ParseSelection(r io.Reader) ([]int64, error) {
	var out []int64
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), 4096)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		v, err := strconv.ParseUint(text, 10, 63)
		switch {
		case err != nil:
			return nil, fmt.Errorf("line %d: %.32q is no number of a document", n, text)
		case len(out) > 0 && int64(v) <= out[len(out)-1]:
			return nil, fmt.Errorf("line %d: document %d comes after document %d: sort the numbers, each once", n, v, out[len(out)-1])
		case len(out) == maxSelected:
			return nil, fmt.Errorf("line %d: more than %d documents are selected", n, maxSelected)
		}
		out = append(out, int64(v))
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("it names no document")
	}
	return out, nil
}

// selections adds the views of the selections. A selection of no set, or in the place of other views, is an error.
func (v *Volume) selections(list []Selection) error {
	taken := map[string]bool{}
	for i := range v.Views {
		taken[path.Dir(v.Views[i].Path)], taken[v.Views[i].Path] = true, true
	}
	for _, sel := range list {
		dir, name := path.Split(sel.Name)
		dir = strings.TrimSuffix(dir, "/")
		i := slices.IndexFunc(v.Sets, func(s *Set) bool { return s.ViewDir() == dir && s.entries == nil && s.DType != DTypeUnknown })
		switch {
		case !fs.ValidPath(sel.Name) || name == "." || strings.ContainsAny(sel.Name, "\x00\\"):
			return fmt.Errorf("%q is no name for a selection", sel.Name)
		case i < 0:
			return fmt.Errorf("selection %s: no tokens have their views in %q%s", sel.Name, dir, v.tokenSets())
		case taken[path.Join(dir, name)]:
			return fmt.Errorf("selection %s: other views are there", sel.Name)
		}
		taken[path.Join(dir, name)] = true
		s := v.Sets[i].selected(sel.Documents)
		s.viewDir = path.Join(dir, name)
		for _, view := range s.views() {
			view.Path, view.Set = path.Join(s.viewDir, view.Path), s
			v.Views = append(v.Views, view)
		}
	}
	return nil
}

// tokenSets names the sets that can be selected from, for an error.
func (v *Volume) tokenSets() string {
	var names []string
	for _, s := range v.Sets {
		if s.entries == nil && s.DType != DTypeUnknown {
			names = append(names, path.Join(s.ViewDir(), "NAME"))
		}
	}
	if len(names) == 0 {
		return ": there are none"
	}
	more := ""
	if len(names) > 8 {
		names, more = names[:8], ", ..."
	}
	return ": give " + strings.Join(names, ", or ") + more
}

// selected makes a set of some of s's documents. It has one shard, which is resolved when a view is built.
func (s *Set) selected(documents []int64) *Set {
	h := &Shard{Name: s.Shards[0].Name, Tokens: -1, Documents: int64(len(documents)), Samples: -1}
	for _, from := range s.Shards { // a view is for users who may read all objects behind it
		h.Objects = append(h.Objects, from.Objects...)
	}
	h.resolve = func(ctx context.Context, h *Shard) error {
		body, err := s.tokens(ctx)
		if err != nil {
			return err
		}
		index, err := s.index(ctx)
		if err != nil {
			return err
		}
		return h.choose(ctx, body, int64(s.DType.Size()), index, documents)
	}
	return &Set{
		Format: s.Format, Dir: s.Dir, Split: s.Split, DType: s.DType, Shards: []*Shard{h},
		NoTokens: s.NoTokens, NoDocuments: s.NoDocuments, volume: s.volume, resolving: make(chan struct{}, 1),
	}
}

// choose fills in where the documents lie in the tokens of body. Their borders are read many at a time.
func (h *Shard) choose(ctx context.Context, body *Body, item int64, index DocumentIndex, documents []int64) error {
	const atOnce = 1 << 12
	if last := documents[len(documents)-1]; last >= index.Documents() {
		return fmt.Errorf("document %d is selected, there are %d", last, index.Documents())
	}
	starts := make([]int64, 0, len(documents)+1)
	var b Body
	for rest := documents; len(rest) > 0; {
		n := min(len(rest), atOnce)
		if far, _ := slices.BinarySearch(rest[:n], rest[0]+16*atOnce); far < n { // no borders between documents that are far apart
			n = far
		}
		borders := make([]int64, rest[n-1]-rest[0]+2)
		if err := DocumentStarts(ctx, index, borders, rest[0]); err != nil {
			return err
		}
		for _, d := range rest[:n] {
			begin, end := borders[d-rest[0]], borders[d-rest[0]+1]
			if begin < 0 || end < begin || end > body.Size()/item {
				return fmt.Errorf("document %d goes from token %d to %d, there are %d", d, begin, end, body.Size()/item)
			}
			starts = append(starts, b.Size()/item)
			for r := range body.RunsWithin(begin*item, (end-begin)*item) {
				b.AddStrided(r.Object, r.Offset, r.Length, r.Stride, r.Count)
			}
			if b.Runs() > maxRuns {
				return absent("the selected documents lie in more than %d separate pieces: repack the dataset to read them as one stream", maxRuns)
			}
		}
		rest = rest[n:]
	}
	h.Tokens, h.Data = b.Size()/item, b
	h.Index = listedDocuments{wholeDocuments{int64(len(documents))}, append(starts, h.Tokens)}
	return nil
}
