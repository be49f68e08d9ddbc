package httporigin

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// directory is the files of a source, by the answers of its server.
type directory struct {
	from     string // the index or listing that names them
	objects  []*layout.Object
	denied   []cache.Denied
	problems []layout.Problem
}

func (d *directory) problem(object, format string, args ...any) {
	d.problems = append(d.problems, layout.Problem{Object: object, Detail: fmt.Sprintf(format, args...)})
}

func (d *directory) deny(name string, err error) {
	d.denied = append(d.denied, cache.Denied{Name: name, Why: err.Error()})
	d.problem(name, "cannot be opened here (EACCES): %v", err)
}

// unknown returns names that were not asked for yet, each once.
func (d *directory) unknown(names []string) []string {
	known := map[string]bool{}
	for _, o := range d.objects {
		known[o.Name] = true
	}
	for _, x := range d.denied {
		known[x.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		was := known[name]
		known[name] = true
		return was
	})
}

// misses judges the errors of files that an index names.
func (d *directory) misses(failed map[string]error) error {
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		switch err := failed[name]; {
		case errors.Is(err, fs.ErrPermission):
			d.deny(name, err)
		case errors.Is(err, fs.ErrNotExist):
			d.problem(name, "is named by %s and cannot be had: %v", d.from, err)
		default:
			return err
		}
	}
	return nil
}

// lacks judges the errors of files that may be there or not, of as many as were asked for. A server that denies each file
// that it does not give may mean that none of them is there.
func (d *directory) lacks(failed map[string]error, asked int) {
	var refused []string
	missing := 0
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		switch err := failed[name]; {
		case errors.Is(err, fs.ErrNotExist):
			missing++
		case errors.Is(err, fs.ErrPermission):
			refused = append(refused, name)
		default:
			d.problem(name, "cannot be had: %v", err)
		}
	}
	switch {
	case len(refused) == 0:
	case missing > 0:
		for _, name := range refused {
			d.deny(name, failed[name])
		}
	default:
		d.problem(d.from, "of %d files that are often beside it the server refuses %d, as if they were not there, and they are left out: %v", asked, len(refused), failed[refused[0]])
	}
}

// listing makes the listing of all. A denied file has its place among the others, and goes where they leave it none.
func (d *directory) listing() *cache.Listing {
	denied := map[*layout.Object]cache.Denied{}
	all := slices.Clone(d.objects)
	for _, x := range d.denied {
		o := &layout.Object{Name: x.Name, Version: "denied"}
		denied[o], all = x, append(all, o)
	}
	l := cache.RemoteListing(all)
	l.Objects = slices.DeleteFunc(l.Objects, func(o *layout.Object) bool {
		x, is := denied[o]
		if is {
			l.Denied = append(l.Denied, x)
		}
		return is
	})
	l.Problems = append(d.problems, l.Problems...)
	return l
}
