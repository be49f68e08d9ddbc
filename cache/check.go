package cache

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// Bounds of a listing. Later code counts on them: sums of sizes, in bytes or in blocks, fit into 63 bits, and a walk down
// a path ends soon.
const (
	maxObject  = 1 << 56 // bytes of one object
	maxTotal   = 1 << 60 // bytes of all
	maxPart    = 255     // bytes of a part of a name: NAME_MAX
	maxPath    = 1 << 16 // bytes of a name
	maxVersion = 1 << 10 // bytes: it goes into a header of each request

	controlName = ".hbmfs" // of the directory that a mount has in its root: mountpoint.ControlName
)

// Check is the one door for the objects that an origin lists. It orders them, takes out those that no mount could show,
// and names these in Problems. Each function that makes a listing or adds to it calls Check; a second call finds nothing
// more. Directories and links need none: they are the kernel's, or follow from the objects.
func (l *Listing) Check() {
	slices.SortFunc(l.Objects, func(a, b *layout.Object) int {
		if byName := layout.ComparePaths(a.Name, b.Name); byName != 0 {
			return byName
		}
		return cmp.Or(strings.Compare(a.Version, b.Version), cmp.Compare(a.Size, b.Size)) // the same at each mount
	})
	last := (*layout.Object)(nil)
	l.filter(func(_ int, o *layout.Object) string {
		if why := wrong(o); why != "" {
			return why
		}
		if last != nil && last.Name == o.Name {
			return "is listed twice: one of the two is left out"
		}
		last = o
		return ""
	})
	total := int64(0)
	l.filter(func(i int, o *layout.Object) string {
		switch {
		case i+1 < len(l.Objects) && strings.HasPrefix(l.Objects[i+1].Name, o.Name+"/"):
			return "is an object, and a directory of others: left out"
		case o.Size > maxTotal-total:
			return fmt.Sprintf("has %d bytes, with which all have more than a mount shows (%d): left out", o.Size, int64(maxTotal))
		}
		total += o.Size
		if year := o.ModTime.Year(); year < 0 || year > 9999 {
			l.leaveOut(o.Name, "was changed in the year %d: its time is shown as 1970", year)
			o.ModTime = time.Unix(0, 0)
		}
		return ""
	})
}

// filter leaves out the objects of which wrong gives a reason.
func (l *Listing) filter(wrong func(i int, o *layout.Object) (why string)) {
	rest := make([]*layout.Object, 0, len(l.Objects))
	for i, o := range l.Objects {
		if why := wrong(i, o); why != "" {
			l.leaveOut(o.Name, "%s", why)
			continue
		}
		rest = append(rest, o)
	}
	l.Objects = rest
}

// wrong says why an object cannot be shown, "" if it can.
func wrong(o *layout.Object) string {
	switch {
	case len(o.Name) > maxPath:
		return fmt.Sprintf("the name is %d bytes long: left out", len(o.Name))
	case !plainName(o.Name):
		return "the name is no path of a file: left out"
	case o.Name == controlName || strings.HasPrefix(o.Name, controlName+"/"):
		return "lies where a mount has its own files: left out"
	case o.Size < 0:
		return fmt.Sprintf("has %d bytes, less than nothing: left out", o.Size)
	case o.Size > maxObject:
		return fmt.Sprintf("has %d bytes, more than a mount shows of one object (%d): left out", o.Size, int64(maxObject))
	case o.Version == "":
		return "the server gives no version (ETag), so that a change could not be seen: left out"
	case len(o.Version) > maxVersion:
		return fmt.Sprintf("has a version (ETag) of %d bytes, at most %d can be: left out", len(o.Version), maxVersion)
	case strings.ContainsFunc(o.Version, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "has a version (ETag) with control characters, which cannot be asked for: left out"
	}
	return ""
}

// plainName reports whether name is a path below a directory. Bytes that are no UTF-8 are as good as others.
func plainName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxPart || strings.ContainsRune(part, 0) {
			return false
		}
	}
	return true
}
