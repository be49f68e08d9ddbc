package s3origin

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/hbmfs/hbmfs/layout"
)

// Names in a bucket where checkpoints are drained to, by package drain. A checkpoint is the directory of its manifest.
const (
	RunMark     = ".hbmfs-drain.json"    // in the directory that has the checkpoints
	runState    = ".hbmfs-drain"         // a directory beside it, of what drains say to each other
	runManifest = ".hbmfs-manifest.json" // the last object of a checkpoint
)

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
