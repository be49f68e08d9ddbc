package pack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hbmfs/hbmfs/internal/pack/corpus"
	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/layout"
)

// input is the sources of Options, once they are understood: a corpus, or documents that are tokens.
type input struct {
	corpus     *corpus.Corpus
	spans      []corpus.Span // of the corpus
	source     Source        // where there is no corpus
	total      int64         // bytes
	tokens     bool          // the source is tokenized already
	vocabulary int64         // of tokens: no token is this or more, as far as their type says
	// mostlyText refuses sources that are mostly something else. Likely they are a dataset in a format that was not
	// recognized, and the user does not want its README and index packed.
	mostlyText bool
}

// checkInput checks the options that describe the sources.
func checkInput(o *Options) error {
	if len(o.Sources) == 0 {
		return errors.New("no source is given")
	}
	switch o.From {
	case "", "auto", "text", "jsonl", "tokens":
	default:
		return fmt.Errorf("a source cannot be read as %q: use auto, text, jsonl or tokens", o.From)
	}
	for _, glob := range o.Include {
		if _, err := path.Match(glob, ""); err != nil {
			return fmt.Errorf("glob %q: %w", glob, err)
		}
	}
	_, err := o.documentEnd()
	return err
}

// documentEnd returns the token that ends a document, or -1.
func (o *Options) documentEnd() (int64, error) {
	if o.DocumentEnd == "" {
		return -1, nil
	}
	end, err := strconv.ParseUint(o.DocumentEnd, 10, 32)
	if err != nil {
		return -1, fmt.Errorf("document end %q is not a token", o.DocumentEnd)
	}
	return int64(end), nil
}

// openInput finds the kinds of the sources, by options that checkInput has passed. It reads no document. cut
// is a tokenizer's, which is opened only where there is text.
func openInput(ctx context.Context, o *Options, cut func(text []byte) int) (*input, error) {
	out, err := filepath.Abs(o.Out)
	if err != nil {
		return nil, fmt.Errorf("find the output directory: %w", err)
	}
	c := corpus.New(corpus.Options{From: o.From, Key: o.TextKey, Include: o.Include, Exclude: out, Objects: o.Objects, Cut: cut})
	var sets []tokenSet
	for _, source := range o.Sources {
		set, err := o.tokensOf(ctx, source, c)
		switch {
		case err != nil:
			return nil, err
		case set != nil:
			sets = append(sets, *set)
		case o.From == "tokens":
			return nil, fmt.Errorf("%s holds no tokens that this program can read", source)
		default:
			if err := c.Add(ctx, source); err != nil {
				return nil, err
			}
		}
	}
	switch {
	case len(sets) > 0 && len(c.Files) > 0:
		return nil, errors.New("some sources are text and some are tokens: pack them one after the other, or say what they are with --from")
	case len(sets) > 0 && o.Part.Of > 0:
		return nil, cli.Mistakef("--part is for sources that are tokenized: these are tokens already")
	case len(sets) > 0:
		return newTokenInput(sets, o)
	}
	in := &input{corpus: c, mostlyText: (o.From == "" || o.From == "auto") && len(o.Include) == 0, spans: c.Part(0, 1)}
	if o.Part.Of > 0 {
		in.spans = c.Part(o.Part.Index, o.Part.Of)
	}
	for _, s := range in.spans {
		in.total += s.To - s.From
	}
	if in.tokens, err = c.Tokens(ctx); in.tokens {
		in.vocabulary, err = vocabularyOf(layout.I64)
	}
	return in, err
}

// tokensOf returns the tokens that a source holds, or nil.
func (o *Options) tokensOf(ctx context.Context, source string, c *corpus.Corpus) (*tokenSet, error) {
	if o.From != "" && o.From != "auto" && o.From != "tokens" {
		return nil, nil
	}
	if address.IsRemote(source) {
		if o.From != "tokens" {
			return nil, nil
		}
		return o.findTokens(ctx, source, "")
	}
	info, err := os.Stat(source)
	if err != nil {
		return nil, nil // a glob, or a mistake that Add explains
	}
	if info.IsDir() {
		return o.findTokens(ctx, source, "")
	}
	if o.From != "tokens" {
		readable, err := c.Readable(ctx, source)
		if err != nil || readable {
			return nil, nil // Add reads it, and says why it cannot
		}
	}
	return o.findTokens(ctx, filepath.Dir(source), filepath.Base(source))
}

// findTokens returns the token set that a directory holds, or only one file of it, or nil. Without --from tokens, a
// directory counts as tokens only if most of its bytes are. A source tree with a test vector is still text. Parquet is left to
// package corpus, which can begin in the middle, and takes another column by its name.
func (o *Options) findTokens(ctx context.Context, dir, only string) (*tokenSet, error) {
	if o.Index == nil {
		return nil, nil
	}
	source := filepath.Join(dir, only)
	if only == "" {
		source = dir
	}
	volume, err := o.Index(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("open source: %w", err)
	}
	var found []tokenSet
	var names []string
	var all, inSets int64
	for _, f := range volume.Objects {
		if path.Base(f.Name) != layout.ManifestName { // which is longer than a small dataset
			all += f.Size
		}
	}
	for _, s := range volume.Sets {
		if s.Format == "parquet" && o.From != "tokens" {
			continue
		}
		if s.DType == layout.DTypeUnknown || s.NoTokens != "" || (o.Set != "" && o.Set != s.ViewDir()) {
			continue
		}
		t := tokenSet{source: source, set: s, shards: shardsNamed(s, only)}
		if len(t.shards) == 0 {
			continue
		}
		found, names = append(found, t), append(names, fmt.Sprintf("%q", s.ViewDir()))
		for _, h := range t.shards {
			inSets += h.Bytes()
		}
	}
	if o.From != "tokens" && only == "" && inSets <= all/2 {
		return nil, nil
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return &found[0], nil
	}
	return nil, fmt.Errorf("%s holds %d token sets, choose one with --set: %s", source, len(found), strings.Join(names, ", "))
}

// shardsNamed returns the shards of s, or the one that holds the object of that name.
func shardsNamed(s *layout.Set, only string) []*layout.Shard {
	if only == "" {
		return s.Shards
	}
	for i, h := range s.Shards {
		for _, o := range h.Objects {
			if o.Name == only {
				return s.Shards[i : i+1]
			}
		}
	}
	return nil
}
