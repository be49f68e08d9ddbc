package pack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hbmfs/hbmfs/layout"
)

// input is the sources of Options, once they are understood.
type input struct {
	source     Source
	files      *fileSource // source, where it is text
	total      int64       // bytes
	tokens     bool        // the source is tokenized already
	vocabulary int64       // of tokens: no token is this or more, as far as their type says
}

// skipped returns how many files were left out. It is right once the source has ended.
func (in *input) skipped() int64 {
	if in.files == nil {
		return 0
	}
	return in.files.skipped
}

// inputFile is a file to read, as it was found.
type inputFile struct {
	path  string
	size  int64 // as it is stored
	kind  kind
	sniff bool // skip it unless it looks like text
}

// kind is how a file is read.
type kind int

const (
	asText  kind = iota // one document
	asJSONL             // a document a line
	asJSON              // either, as its content says
)

// fileSource yields the documents of files, in order. The goroutine that runs Documents owns it until that returns.
type fileSource struct {
	files   []inputFile
	key     string // of JSONL
	skipped int64  // files that are not text

	skippedBytes int64
	limit        int                   // bytes: maxDocument, but in tests
	lastCut      func(text []byte) int // see tokenizer.Tokenizer
	// mostlyText refuses a source that is mostly something else. Likely it is a dataset in a format that was not
	// recognized, and the user does not want its README and index packed.
	mostlyText bool
}

// Documents implements [Source].
func (s *fileSource) Documents(ctx context.Context, yield func(Document) error) error {
	before := int64(0)
	for _, file := range s.files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.file(ctx, file, before, yield); err != nil {
			return err
		}
		before += file.size
	}
	if s.mostlyText && s.skippedBytes > before/2 {
		return fmt.Errorf("%d of the sources' %d bytes are neither text nor tokens that this program can read: say with --from what they are, or with --include which files to pack",
			s.skippedBytes, before)
	}
	return nil
}

// file yields the documents of one file.
func (s *fileSource) file(ctx context.Context, file inputFile, before int64, yield func(Document) error) error {
	in, err := openStream(file.path)
	if err != nil {
		return fmt.Errorf("read %s: %w", file.path, err)
	}
	defer in.close()
	passed := error(nil) // an error of yield is not about this file
	pass := func(d Document) error {
		passed = yield(d)
		return passed
	}
	switch file.kind {
	case asJSONL:
		err = s.jsonl(ctx, bufio.NewReaderSize(in, lineBuffer), in, before, pass)
	case asJSON:
		err = s.json(ctx, file, in, before, pass)
	default:
		err = s.text(file, in, in, before, pass)
	}
	if err == nil || passed != nil {
		return passed
	}
	return fmt.Errorf("read %s: %w", file.path, err)
}

// checkInput checks the options that say what the sources are.
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

// openInput finds what the sources are, by options that checkInput has passed. It reads no document.
func openInput(ctx context.Context, o *Options) (*input, error) {
	f := &finder{options: o, files: fileSource{key: o.TextKey, limit: maxDocument}}
	if f.files.key == "" {
		f.files.key = "text"
	}
	var err error
	if f.out, err = filepath.Abs(o.Out); err != nil {
		return nil, fmt.Errorf("find the output directory: %w", err)
	}
	for _, source := range o.Sources {
		if err := f.add(ctx, source); err != nil {
			return nil, err
		}
	}
	if len(f.sets) > 0 && len(f.files.files) > 0 {
		return nil, errors.New("some sources are text and some are tokens: pack them one after the other, or say what they are with --from")
	}
	if len(f.sets) > 0 {
		return newTokenInput(f.sets, o)
	}
	f.files.mostlyText = o.From == "" || o.From == "auto"
	in := &input{source: &f.files, files: &f.files}
	for _, file := range f.files.files {
		in.total += file.size
	}
	return in, nil
}

// finder collects what the sources hold.
type finder struct {
	options *Options
	out     string // absolute; a source may hold it, and it is never read
	files   fileSource
	sets    []tokenSet
}

func (f *finder) add(ctx context.Context, source string) error {
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("open source: %w", err)
	}
	from := f.options.From
	auto := from == "" || from == "auto"
	if from == "tokens" || (auto && (info.IsDir() || kindOf(source) != asJSONL && isBinary(source))) {
		set, err := f.findTokens(ctx, source, info)
		if err != nil {
			return err
		}
		if set != nil {
			f.sets = append(f.sets, *set)
			return nil
		}
	}
	if from == "tokens" {
		return fmt.Errorf("%s holds no tokens that this program can read", source)
	}
	if !info.IsDir() {
		f.files.files = append(f.files.files, inputFile{path: source, size: info.Size(), kind: f.kindOf(source)})
		return nil
	}
	return f.walk(ctx, source)
}

// walk adds the files below dir, in lexical order. Names that begin with a dot and symlinks are left out, but dir may
// be either.
func (f *finder) walk(ctx context.Context, dir string) error {
	root := dir + string(filepath.Separator) // so that WalkDir follows dir itself
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		if name != root && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			if abs, err := filepath.Abs(name); err == nil && abs == f.out && name != root {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		if !d.Type().IsRegular() || !f.included(filepath.ToSlash(rel)) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		kind := f.kindOf(name)
		f.files.files = append(f.files.files, inputFile{
			path: name, size: info.Size(), kind: kind, sniff: kind != asJSONL && len(f.options.Include) == 0})
		return nil
	})
}

func (f *finder) included(rel string) bool {
	for _, glob := range f.options.Include {
		name := path.Base(rel)
		if strings.Contains(glob, "/") {
			name = rel
		}
		if ok, _ := path.Match(glob, name); ok { // the globs have been checked
			return true
		}
	}
	return len(f.options.Include) == 0
}

func (f *finder) kindOf(name string) kind {
	switch f.options.From {
	case "jsonl":
		return asJSONL
	case "text":
		return asText
	}
	return kindOf(name)
}

func kindOf(name string) kind {
	switch contentExt(name) {
	case ".jsonl", ".ndjson":
		return asJSONL
	case ".json":
		return asJSON
	}
	return asText
}

// isBinary reports whether a file does not look like text. One that cannot be read fails where it is read.
func isBinary(name string) bool {
	in, err := openStream(name)
	if err != nil {
		return false
	}
	defer in.close()
	c := cutter{r: in} // peek needs no limit
	head, err := c.peek(sniffBytes)
	return err == nil && !looksLikeText(head)
}

// findTokens returns the token set that source holds, or nil. Without --from tokens, a directory counts as tokens only
// if most of its bytes are. A source tree with a test vector is still text.
func (f *finder) findTokens(ctx context.Context, source string, info fs.FileInfo) (*tokenSet, error) {
	if f.options.Index == nil {
		return nil, nil
	}
	dir, only := source, ""
	if !info.IsDir() {
		dir, only = filepath.Dir(source), filepath.Base(source)
	}
	volume, err := f.options.Index(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("open source: %w", err)
	}
	var found []tokenSet
	var names []string
	var all, inSets int64
	for _, o := range volume.Objects {
		if path.Base(o.Name) != layout.ManifestName { // which is longer than a small dataset
			all += o.Size
		}
	}
	for _, s := range volume.Sets {
		if s.DType == layout.DTypeUnknown || s.NoTokens != "" || (f.options.Set != "" && f.options.Set != s.ViewDir()) {
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
	if f.options.From != "tokens" && only == "" && inSets <= all/2 {
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
