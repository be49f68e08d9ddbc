package layout

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Options changes how a dataset is recognized.
type Options struct {
	// Format, if set, is the only format that is tried; a dataset that holds none of it is an error.
	Format string
	// DType is the element type of headerless token files, which carry none. Unset: it is found by looking at the values.
	DType DType
	// Manifest is the file [ManifestName] beside a source that is one file: objects have none of it then. May be nil.
	Manifest []byte
	// Select adds views of some documents.
	Select []Selection
}

// Volume is a dataset that was recognized: its objects, the sets that they form, and the views of them.
type Volume struct {
	Objects []*Object // in the order of [ComparePaths]
	Sets    []*Set
	Views   []View

	headers  headerBudget
	places   places
	decoded  *kept
	mu       sync.Mutex
	problems []Problem
	hints    []Hint // fixed once Index returns
}

// Problem is something wrong in the dataset. It makes the object that it names, or a view, less than it should be,
// and nothing else.
type Problem struct {
	Object string `json:"object"`           // name of the object
	Offset int64  `json:"offset,omitempty"` // where in the object, bytes
	Detail string `json:"detail"`           // found and expected
}

func (p Problem) String() string {
	return fmt.Sprintf("%s: at %d: %s", p.Object, p.Offset, p.Detail)
}

// Problems returns the problems found so far, ordered by object. Resolving and checking sets can add more.
func (v *Volume) Problems() []Problem {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := slices.Clone(v.problems)
	slices.SortStableFunc(out, func(a, b Problem) int { return ComparePaths(a.Object, b.Object) })
	return out
}

// Hint names a file that may hold tokens and is in no view, and the flag that shows it. It is no problem.
type Hint struct {
	Object string `json:"object"`
	Detail string `json:"detail"`
}

func (h Hint) String() string { return h.Object + ": " + h.Detail }

// Hints returns the hints, ordered by object.
func (v *Volume) Hints() []Hint { return v.hints }

// Guesses names the element types that nothing but values shows, one sentence for each type. It leaves out shards that told refuses.
func (v *Volume) Guesses(told func(object string) bool) (guesses []Hint) {
	guessed := slices.DeleteFunc(slices.Clone(v.Sets), func(s *Set) bool { return !s.Guessed || !told(s.Shards[0].Name) })
	types, groups := grouped(guessed, func(s *Set) DType { return s.DType })
	for i, sets := range groups {
		files, more := 0, ""
		for _, s := range sets {
			files += len(s.Shards)
		}
		if files > 1 {
			more = fmt.Sprintf(" (and of %d more)", files-1)
		}
		guesses = append(guesses, Hint{sets[0].Shards[0].Name, fmt.Sprintf("no header, so its type%s was guessed from the values: %s; hbmfs mount --dtype sets it", more, types[i].Long())})
	}
	return guesses
}

func (v *Volume) problem(o *Object, off int64, format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.problems = append(v.problems, Problem{o.Name, off, fmt.Sprintf(format, args...)})
}

// ComparePaths orders slash-separated paths by their components, so that a directory's content stays together.
func ComparePaths(a, b string) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		if ca, cb := a[i], b[i]; ca != cb {
			if ca == '/' {
				return -1
			}
			if cb == '/' {
				return 1
			}
			return int(ca) - int(cb)
		}
	}
	return len(a) - len(b)
}

// headSize is how much of every object the formats see when they decide whose it is. A tar header ends at 512, the
// largest fixed header (llm.c's) at 1024; the rest gives headerless tokens a sample worth looking at.
const headSize = 4096

// Index recognizes the formats among objects, which it does not change. An object that cannot be read, or is damaged,
// becomes a Problem. The error is for ctx, and for Options that cannot be met.
func Index(ctx context.Context, objects []*Object, opt Options) (*Volume, error) {
	formats, err := selectFormats(opt)
	if err != nil {
		return nil, err
	}
	byName := func(a, b *Object) int { return ComparePaths(a.Name, b.Name) }
	if !slices.IsSortedFunc(objects, byName) { // a listing of package cache is
		objects = slices.SortedFunc(slices.Values(objects), byName)
	}
	v := &Volume{Objects: objects, headers: newHeaderBudget(), decoded: newKept()}
	probed, err := probe(ctx, v, formats)
	if err != nil {
		return nil, err
	}
	x := &indexer{volume: v, opt: opt, probed: probed, claimed: make([]bool, len(objects))}
	for i := range formats {
		if err := x.assemble(ctx, &formats[i], i); err != nil {
			return nil, err
		}
	}
	x.missing()
	x.complete()
	x.unusedDType()
	if opt.Format != "" && opt.Format != "raw" && len(v.Sets) == 0 {
		return nil, fmt.Errorf("no %s dataset is here: hbmfs inspect without --format names the formats%s", opt.Format, x.firstProblem())
	}
	slices.SortStableFunc(v.Sets, func(a, b *Set) int { return ComparePaths(a.ViewDir(), b.ViewDir()) })
	slices.SortStableFunc(v.hints, func(a, b Hint) int { return ComparePaths(a.Object, b.Object) })
	v.Views = views(v)
	return v, v.selections(opt.Select)
}

// probedObject is an object's head as the probe of a format understood it.
type probedObject struct {
	format int // index of the format, -1 for none
	head   any
}

func probe(ctx context.Context, v *Volume, formats []format) ([]probedObject, error) {
	probed := make([]probedObject, len(v.Objects))
	workers := 4 * runtime.GOMAXPROCS(0)
	g := new(errgroup.Group)
	for w := range workers {
		g.Go(func() error {
			buf := make([]byte, headSize)
			for i := w; i < len(v.Objects); i += workers {
				probed[i] = probeOne(ctx, v, formats, v.Objects[i], buf)
				if err := ctx.Err(); err != nil { // after it: an object whose reading was ended is not one of no format
					return err
				}
			}
			return nil
		})
	}
	return probed, g.Wait()
}

func probeOne(ctx context.Context, v *Volume, formats []format, o *Object, buf []byte) probedObject {
	if o.Whole { // an index claims it, or --dtype
		i := slices.IndexFunc(formats, func(f format) bool { return f.name == tokensFormat && isTokenName(o.Name) })
		return probedObject{i, tokenGuess{unseen: true}}
	}
	head := buf[:min(o.Size, headSize)]
	if n, err := o.ReadAt(ctx, head, 0); n < len(head) {
		if ctx.Err() == nil {
			v.problem(o, int64(n), "cannot be read: %v", err)
		}
		return probedObject{format: -1}
	}
	for i := range formats {
		if learnt := formats[i].probe(o, head); learnt != nil {
			return probedObject{i, learnt}
		}
	}
	return probedObject{format: -1}
}

// indexer is the state of one Index call while the formats take turns to claim objects.
type indexer struct {
	volume  *Volume
	opt     Options
	probed  []probedObject
	claimed []bool
}

// assemble lets one format form its sets, directory by directory, from the objects that it recognized and that no
// format before it has claimed. A directory comes before those below it, so that an index which names shards there has
// the first word about them.
func (x *indexer) assemble(ctx context.Context, f *format, number int) error {
	var members []member
	for i, p := range x.probed {
		if p.format == number && !x.claimed[i] {
			members = append(members, member{x.volume.Objects[i], p.head})
		}
	}
	slices.SortStableFunc(members, func(a, b member) int { return depth(a.object.Name) - depth(b.object.Name) })
	dirs, groups := grouped(members, func(m member) string { return dirOf(m.object.Name) })
	for i, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return err
		}
		d := &directory{indexer: x, format: f.name, path: dir}
		f.assemble(ctx, d, groups[i])
	}
	return nil
}

// missing tells of objects that no format looked into, beside shards with their extension: views without them would look complete.
func (x *indexer) missing() {
	type kind struct{ dir, extension string }
	of := func(name string) kind { return kind{dirOf(name), path.Ext(name)} }
	shards := map[kind]bool{}
	for _, s := range x.volume.Sets {
		for _, shard := range s.Shards {
			shards[of(shard.Name)] = true
		}
	}
	for i, o := range x.volume.Objects {
		if o.Whole && !x.claimed[i] && shards[of(o.Name)] {
			x.volume.problem(o, 0, "no view has it: it is decoded as a whole, so formats are not looked for in it; store it uncompressed, or with a seek table")
		}
	}
}

func (x *indexer) firstProblem() string {
	if p := x.volume.Problems(); len(p) > 0 {
		return ": " + p[0].String()
	}
	return ""
}

// find returns the position of the named object among the volume's, -1 where there is none.
func (x *indexer) find(name string) int {
	i, ok := slices.BinarySearchFunc(x.volume.Objects, name, func(o *Object, name string) int { return ComparePaths(o.Name, name) })
	if !ok {
		return -1
	}
	return i
}

// member is an object of a directory with its head, as the probe understood it.
type member struct {
	object *Object
	head   any
}

// directory is one directory for a format's assemble: its objects, those that it may look up beside them, and the sets
// that it forms.
type directory struct {
	*indexer
	format string
	path   string // "" for the root
}

// errOutside is lookup's error for a name that leaves the dataset.
var errOutside = errors.New("the name leaves the dataset's root")

// lookup returns the object that an index in this directory calls name (slash-separated, relative to the directory).
// Names from an index are hostile: an absolute one, or one that leaves the root, gives errOutside. A missing object
// gives nil without an error.
func (d *directory) lookup(name string) (*Object, error) {
	full := path.Join(d.path, name)
	if name == "" || path.IsAbs(name) || strings.ContainsRune(name, 0) || strings.ContainsRune(name, '\\') ||
		full == "." || full == ".." || strings.HasPrefix(full, "../") {
		return nil, errOutside
	}
	if i := d.find(full); i >= 0 {
		return d.volume.Objects[i], nil
	}
	return nil, nil
}

// sibling returns the object of this directory with the given base name, or nil.
func (d *directory) sibling(base string) *Object {
	o, _ := d.lookup(base)
	return o
}

// claim takes an object, so that no later format sees it. It reports false when another set has it already.
func (d *directory) claim(o *Object) bool {
	i := d.find(o.Name)
	if i < 0 || d.claimed[i] {
		return false
	}
	d.claimed[i] = true
	return true
}

// isClaimed reports whether a set has o already.
func (d *directory) isClaimed(o *Object) bool {
	i := d.find(o.Name)
	return i >= 0 && d.claimed[i]
}

func (d *directory) problem(o *Object, off int64, format string, args ...any) {
	d.volume.problem(o, off, format, args...)
}

// add makes a set of shards, claims their objects, and returns it. Shards keep their order.
func (d *directory) add(split string, dtype DType, shards []*Shard) *Set {
	s := &Set{
		Format: d.format, Dir: d.path, Split: split, DType: dtype, Shards: shards,
		volume: d.volume, resolving: make(chan struct{}, 1),
	}
	for _, shard := range shards {
		for _, o := range shard.Objects {
			d.claim(o)
		}
	}
	d.volume.Sets = append(d.volume.Sets, s)
	return s
}

func dirOf(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i]
	}
	return ""
}

// depth returns how many directories a name lies below the root.
func depth(name string) int { return strings.Count(name, "/") }

func baseOf(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
