// Package cachedir looks into a directory that mounts keep remote datasets in, without a mount: it lists segments, sums them up, verifies and
// removes them. Mounts may use the directory meanwhile.
package cachedir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache/store"
)

// Open opens a cache that is there: opening alone would make one.
func Open(dir string) (*store.Store, error) {
	info, err := os.Stat(filepath.Join(dir, "segments"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: only the user who made a cache, and root, may look into it", err)
	}
	if err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s is no cache directory, it has no folder segments: name the directory that hbmfs mount has as --cache-dir", dir)
	}
	return store.Open(dir, store.Options{})
}

// List lists the segments of a cache, ordered by source, object and place.
func List(ctx context.Context, s *store.Store) ([]store.Segment, error) {
	all := []store.Segment{}
	err := s.Segments(ctx, false, func(g store.Segment) error {
		all = append(all, g)
		return nil
	})
	slices.SortFunc(all, func(a, b store.Segment) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Offset, b.Offset))
	})
	return all, err
}

// Source sums up the segments of one source.
type Source struct {
	Source   string `json:"source"`
	Objects  int    `json:"objects"`
	Segments int    `json:"segments"`
	Bytes    int64  `json:"bytes"`
}

// Totals is the output of hbmfs cache stats.
type Totals struct {
	Directory string     `json:"directory"`
	Segments  int        `json:"segments"`
	Bytes     int64      `json:"bytes"`
	Damaged   int        `json:"damaged"` // segments whose header is; verify looks at all bytes
	Oldest    *time.Time `json:"oldest,omitempty"`
	Newest    *time.Time `json:"newest,omitempty"`
	DiskSize  int64      `json:"disk_size"`
	DiskFree  int64      `json:"disk_free"`
	Sources   []Source   `json:"sources"`
}

// TotalsOf sums ordered segments up.
func TotalsOf(dir string, all []store.Segment) (*Totals, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("ask for the free space of %s: %w", dir, err)
	}
	totals := &Totals{Directory: dir, Segments: len(all), DiskSize: int64(st.Blocks) * st.Bsize, DiskFree: int64(st.Bavail) * st.Bsize, Sources: []Source{}}
	object := ""
	for i := range all {
		g := &all[i]
		totals.Bytes += g.Bytes
		if totals.Oldest == nil || g.Written.Before(*totals.Oldest) {
			totals.Oldest = &g.Written
		}
		if totals.Newest == nil || g.Written.After(*totals.Newest) {
			totals.Newest = &g.Written
		}
		if g.Damage != "" {
			totals.Damaged++
			continue
		}
		k := len(totals.Sources) - 1
		if k < 0 || totals.Sources[k].Source != g.Source {
			totals.Sources = append(totals.Sources, Source{Source: g.Source})
			k, object = k+1, ""
		}
		from := &totals.Sources[k]
		if from.Segments == 0 || g.Object != object {
			from.Objects++
			object = g.Object
		}
		from.Segments++
		from.Bytes += g.Bytes
	}
	return totals, nil
}

// Verification is the result of hbmfs cache verify.
type Verification struct {
	Directory string          `json:"directory"`
	Segments  int             `json:"segments"`
	Bytes     int64           `json:"bytes"`
	Seconds   float64         `json:"seconds"`
	Damaged   []store.Segment `json:"damaged"`
	Removed   int             `json:"removed"`
}

// Verify compares all bytes of a cache with their checksums, and takes damaged segments out if it shall.
func Verify(ctx context.Context, dir string, s *store.Store, remove bool, progress func(doing string, total int64, bytes bool) (add func(int64), end func())) (*Verification, error) {
	total := int64(0)
	if err := s.Segments(ctx, false, func(g store.Segment) error { total += g.Bytes; return nil }); err != nil {
		return nil, err
	}
	add, end := progress("verifying", total, true)
	defer end()
	began := time.Now()
	found := &Verification{Directory: dir, Damaged: []store.Segment{}}
	err := s.Segments(ctx, true, func(g store.Segment) error {
		add(g.Bytes)
		found.Segments++
		found.Bytes += g.Bytes
		if g.Damage == "" {
			return nil
		}
		found.Damaged = append(found.Damaged, g)
		if !remove {
			return nil
		}
		found.Removed++
		return s.Remove(g.File)
	})
	found.Seconds = time.Since(began).Seconds()
	return found, err
}

// Removal is the result of hbmfs cache rm.
type Removal struct {
	Directory string `json:"directory"`
	Segments  int    `json:"segments"`
	Bytes     int64  `json:"bytes"`
}

// Filter says which segments go: those whose source and object fit the patterns that are not empty, or all.
type Filter struct {
	Source, Object string
	All            bool
}

func (c *Filter) fits(g *store.Segment) bool {
	return c.All || g.Damage == "" && (c.Source == "" || glob(c.Source).MatchString(g.Source)) && (c.Object == "" || glob(c.Object).MatchString(g.Object))
}

// Remove takes segments out of a cache. An error comes with the files that were removed before it.
func Remove(ctx context.Context, dir string, s *store.Store, which Filter) (Removal, error) {
	done := Removal{Directory: dir}
	err := s.Segments(ctx, false, func(g store.Segment) error {
		if !which.fits(&g) {
			return nil
		}
		if err := s.Remove(g.File); err != nil {
			return err
		}
		done.Segments++
		done.Bytes += g.Bytes
		return nil
	})
	return done, err
}

// glob makes a pattern of * and ?, which match / as well.
func glob(pattern string) *regexp.Regexp {
	quoted := regexp.QuoteMeta(pattern)
	quoted = strings.ReplaceAll(strings.ReplaceAll(quoted, `\*`, `.*`), `\?`, `.`)
	return regexp.MustCompile(`(?s)\A` + quoted + `\z`)
}
