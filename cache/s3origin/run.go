package s3origin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// Names in a bucket where checkpoints are drained to, by package drain. A checkpoint is the directory of its manifest.
const (
	RunMark     = ".hbmfs-drain.json"    // in the directory that has the checkpoints
	runState    = ".hbmfs-drain"         // a directory beside it, of the drains' messages to each other
	runManifest = ".hbmfs-manifest.json" // the last object of a checkpoint
)

const mostManifest = 64 << 20 // bytes, as package checkpoint has it

// IsAbsent tells whether an error means that an object is not there, in a bucket that is.
func IsAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoBucket)
}

// complete leaves out of a listing the checkpoints that are not complete, where it has the mark of such a place.
func complete(objects []*layout.Object) []*layout.Object {
	runs, whole := map[string]bool{}, map[string]bool{}
	for _, o := range objects {
		switch dir, base := path.Split(o.Name); base {
		case RunMark:
			runs[dir] = true
		case runManifest:
			whole[dir] = true
		}
	}
	if len(runs) == 0 {
		return objects
	}
	kept := objects[:0]
	for _, o := range objects {
		if isComplete(o.Name, runs, whole) {
			kept = append(kept, o)
		}
	}
	return kept
}

// isComplete tells whether an object is outside of all runs, or in a checkpoint that has its manifest.
func isComplete(name string, runs, whole map[string]bool) bool {
	for end := 0; ; {
		run := name[:end]
		next := strings.IndexByte(name[end:], '/')
		if runs[run] && (next < 0 && name[end:] == RunMark || next >= 0 && !whole[name[:end+next+1]]) {
			return false
		}
		if next < 0 {
			return true
		}
		end += next + 1
	}
}

// whole leaves out the drained checkpoints that are not complete, and those that lack objects of their manifests or have others. It names the latter.
// empty are the empty directories of the others.
func (o *Bucket) whole(ctx context.Context, objects []*layout.Object) (kept []*layout.Object, empty []string, problems []layout.Problem, err error) {
	runs := map[string]bool{}
	for _, obj := range objects {
		if dir, base := path.Split(obj.Name); base == RunMark {
			runs[dir] = true
		}
	}
	objects = complete(objects)
	if len(runs) == 0 || o.Misfit == nil {
		return objects, nil, nil, nil
	}
	sizes := make(map[string]int64, len(objects))
	for _, obj := range objects {
		sizes[obj.Name] = obj.Size
	}
	var manifests []*layout.Object
	for _, obj := range objects {
		dir, base := path.Split(obj.Name)
		if run, _ := path.Split(strings.TrimSuffix(dir, "/")); base == runManifest && dir != "" && runs[run] {
			manifests = append(manifests, obj)
		}
	}
	dirs, whys, err := o.misfits(ctx, manifests, sizes)
	if err != nil {
		return nil, nil, nil, err
	}
	broken := map[string]bool{}
	for i, why := range whys {
		dir := path.Dir(manifests[i].Name)
		if why == "" {
			for _, name := range dirs[i] {
				empty = append(empty, dir+"/"+name)
			}
		} else {
			broken[dir+"/"] = true
			problems = append(problems, layout.Problem{Object: dir, Detail: "the checkpoint is damaged, and is left out: " + why})
		}
	}
	for _, obj := range objects {
		if !inAny(obj.Name, broken) {
			kept = append(kept, obj)
		}
	}
	return kept, empty, problems, nil
}

// misfits compares checkpoints with their manifests, and says of each which directories are empty, or which file does
// not fit.
func (o *Bucket) misfits(ctx context.Context, manifests []*layout.Object, sizes map[string]int64) (empty [][]string, whys []string, err error) {
	empty, whys = make([][]string, len(manifests)), make([]string, len(manifests))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4) // each has a manifest in memory
	for i, m := range manifests {
		g.Go(func() error {
			if m.Size > mostManifest {
				whys[i] = fmt.Sprintf("its manifest has %d bytes, more than any", m.Size)
				return nil
			}
			text := make([]byte, m.Size)
			switch _, err := o.ReadAt(ctx, m, text, 0); {
			case errors.Is(err, cache.ErrChanged):
				whys[i] = "its manifest was removed or replaced meanwhile"
				return nil
			case err != nil:
				return fmt.Errorf("read %q: %w", m.Name, err)
			}
			dir := path.Dir(m.Name) + "/"
			empty[i], whys[i] = o.Misfit(text, func(name string) (int64, bool) { n, ok := sizes[dir+name]; return n, ok })
			return nil
		})
	}
	return empty, whys, g.Wait()
}

// inAny tells whether a name lies below one of these directories.
func inAny(name string, dirs map[string]bool) bool {
	for i := range name {
		if name[i] == '/' && dirs[name[:i+1]] {
			return true
		}
	}
	return false
}
