package corpus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/layout"
)

// Options select the files of the sources that are read.
type Options struct {
	From    string   // auto, text or jsonl; the last two say how text is read
	Key     string   // the key or column of the text; default "text"
	Include []string // globs on the base name, or on the path below the source where they hold a slash; default: all
	Exclude string   // a directory that is never read
	// Cut returns the last place where a text can be cut so that its parts give the tokens of the whole, or 0.
	Cut func(text []byte) int
	// Objects lists a source that is an address. nil: there are none.
	Objects func(ctx context.Context, source string) ([]*layout.Object, error)
}

// Corpus is the files of some sources, in an order that depends on their names alone.
type Corpus struct {
	Files []File
	Total int64 // bytes

	opt    Options
	tokens bool // lists of them, see Tokens
	limit  int  // bytes of a line or text: maxDocument, but in tests
	free   sync.Pool
}

// maxDocument bounds a text that offers no place to cut it, a line, an element and a value of a column. 64 MiB.
const maxDocument = 64 << 20

// New makes a corpus of no files.
func New(opt Options) *Corpus {
	if opt.Key == "" {
		opt.Key = "text"
	}
	return &Corpus{opt: opt, limit: maxDocument}
}

// lenient says that files were chosen by the user.
func (c *Corpus) lenient() bool { return len(c.opt.Include) > 0 || c.opt.From == "jsonl" }

// Add lists a source: a file, a directory, a glob or an address.
func (c *Corpus) Add(ctx context.Context, source string) error {
	before := len(c.Files)
	if err := c.list(ctx, source); err != nil {
		return err
	}
	added := c.Files[before:]
	if slices.ContainsFunc(added, func(f File) bool { return contentExt(f.Name) == ".parquet" || contentExt(f.Name) == ".arrow" }) {
		for i := range added {
			added[i].beside = true
		}
	}
	return nil
}

func (c *Corpus) list(ctx context.Context, source string) error {
	if address.IsRemote(source) {
		return c.addRemote(ctx, source)
	}
	info, err := os.Stat(source)
	if errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(source, "*?[") {
		return c.addGlob(ctx, source)
	}
	if err != nil {
		return fmt.Errorf("open source: %w", err)
	}
	if !info.IsDir() {
		c.add(File{Name: source, Rel: filepath.Base(source), path: source, Size: info.Size(), Version: versionOf(info), named: true})
		return nil
	}
	return c.walk(ctx, source)
}

func (c *Corpus) add(f File) {
	c.Files = append(c.Files, f)
	c.Total += f.Size
}

// addGlob adds the files that a pattern matches, in the order of names. A shell may have left it to us, because no
// file matched there, or because it was quoted.
func (c *Corpus) addGlob(ctx context.Context, pattern string) error {
	names, err := filepath.Glob(pattern)
	if err != nil {
		return fmt.Errorf("open source: glob %q: %w", pattern, err)
	}
	if len(names) == 0 {
		return fmt.Errorf("open source: nothing matches %q: %w", pattern, fs.ErrNotExist)
	}
	slices.Sort(names)
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("open source: %w", err)
		}
		if info.IsDir() {
			err = c.walk(ctx, name)
		} else if info.Mode().IsRegular() {
			c.add(File{Name: name, Rel: name, path: name, Size: info.Size(), Version: versionOf(info)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addRemote adds the objects below an address.
func (c *Corpus) addRemote(ctx context.Context, source string) error {
	if c.opt.Objects == nil {
		return fmt.Errorf("open source: %s is not on this machine", source)
	}
	objects, err := c.opt.Objects(ctx, source)
	if err != nil {
		return err
	}
	base, _, _ := strings.Cut(source, "?") // a query may be a secret
	for _, o := range objects {
		if hidden(o.Name) || !c.included(o.Name) {
			continue
		}
		name := strings.TrimSuffix(base, "/") + "/" + o.Name
		if len(objects) == 1 && strings.HasSuffix(base, "/"+o.Name) {
			name = base
		}
		c.add(File{Name: name, Rel: o.Name, Size: o.Size, Version: o.Version, object: o, named: len(objects) == 1})
	}
	return nil
}

func hidden(name string) bool { return strings.HasPrefix(name, ".") || strings.Contains(name, "/.") }

// walk adds the files below dir, in lexical order. Names that begin with a dot and symlinks are left out, but dir may
// be either.
func (c *Corpus) walk(ctx context.Context, dir string) error {
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
			if abs, err := filepath.Abs(name); err == nil && abs == c.opt.Exclude && name != root {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		if !d.Type().IsRegular() || !c.included(filepath.ToSlash(rel)) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		c.add(File{Name: name, Rel: rel, path: name, Size: info.Size(), Version: versionOf(info)})
		return nil
	})
}

func (c *Corpus) included(rel string) bool {
	for _, glob := range c.opt.Include {
		name := path.Base(rel)
		if strings.Contains(glob, "/") {
			name = rel
		}
		if ok, _ := path.Match(glob, name); ok { // the globs have been checked
			return true
		}
	}
	return len(c.opt.Include) == 0
}

// Part returns the spans of part i of n, from 0 on: every file's bytes, in order, cut into n runs of equal length. The
// parts of all i hold every document once.
func (c *Corpus) Part(i, n int) (spans []Span) {
	from, to := share(c.Total, i, n), share(c.Total, i+1, n)
	at := int64(0)
	for k, f := range c.Files {
		s := Span{File: k, From: max(from-at, 0), To: min(to-at, f.Size)}
		empty := f.Size == 0 && (from <= at && at < to || i == n-1 && at == c.Total)
		if empty || s.From < s.To {
			spans = append(spans, s)
		}
		at += f.Size
	}
	return spans
}

// share is total*i/n without an overflow.
func share(total int64, i, n int) int64 {
	return total/int64(n)*int64(i) + total%int64(n)*int64(i)/int64(n)
}

func (c *Corpus) buffer() []byte {
	if b, ok := c.free.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, blockBytes+blockBytes/4)
}

func (c *Corpus) recycle(raw []byte) {
	if cap(raw) <= 4*blockBytes && cap(raw) >= blockBytes {
		c.free.Put(&raw)
	}
}
