package layout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Shards that are missing, and files that look like shards and are in no set with them, make a stream that is shorter than it looks. Names
// tell of both, whatever the format: shards of a set are numbered, and differ in their digits only.

// numbered is a name of a shard with its place: STEM, a number, and the end, which may say how many there are.
type numbered struct {
	stem, end string
	of        string // the count, "" where the name has none
	number    int64
}

// parseNumbered finds the number of a shard in its base name: before -of-COUNT, or before the extension.
func parseNumbered(base string) (n numbered, ok bool) {
	rest := base
	if i := strings.Index(base, "-of-"); i >= 0 {
		count := base[i+len("-of-"):]
		width := len(count) - len(strings.TrimLeft(count, "0123456789"))
		if n.of = count[:width]; width > 0 {
			rest, n.end = base[:i], count[width:]
		}
	}
	if n.of == "" {
		for i := strings.IndexByte(base, '.'); i >= 0; i = next(base, i) {
			if i > 0 && isDigit(base[i-1]) && (i+1 == len(base) || !isDigit(base[i+1])) {
				rest, n.end = base[:i], base[i:]
				break
			}
		}
		if n.end == "" {
			return n, false
		}
	}
	n.stem = strings.TrimRight(rest, "0123456789")
	var err error
	n.number, err = strconv.ParseInt(rest[len(n.stem):], 10, 64)
	return n, err == nil
}

// next gives the next dot of a name after i, -1 for none.
func next(base string, i int) int {
	if j := strings.IndexByte(base[i+1:], '.'); j >= 0 {
		return i + 1 + j
	}
	return -1
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// shardsAreNamed tells whether an index names all shards of a set, and was compared with them.
func shardsAreNamed(s *Set) bool {
	return s.Format == "mds" || s.Format == "litdata" || slices.ContainsFunc(s.Shards, func(h *Shard) bool {
		return slices.ContainsFunc(h.Objects, func(o *Object) bool { return strings.HasSuffix(o.Name, ".safetensors.index.json") })
	})
}

// complete reports, for all sets, numbers that are missing and files that are in no set with those that are named alike.
func (x *indexer) complete() {
	type place struct{ dir, name string }
	of := func(o *Object) place { return place{dirOf(o.Name), familyOf(baseOf(o.Name))} }
	sets := map[place]*Set{} // the one with the most shards of that name
	most := map[*Set]map[place]int{}
	inSet, named := map[*Object]*Set{}, map[*Set]bool{}
	for _, s := range x.volume.Sets {
		named[s] = shardsAreNamed(s)
		most[s] = map[place]int{}
		for _, h := range s.Shards {
			for _, o := range h.Objects {
				inSet[o] = s
			}
			if at := of(h.Objects[0]); h.Name == h.Objects[0].Name {
				most[s][at]++
				if first := sets[at]; first == nil || most[s][at] > most[first][at] {
					sets[at] = s
				}
			}
		}
	}
	runs, order := map[place][]*Object{}, []place(nil)
	for _, o := range x.volume.Objects {
		at := of(o)
		s := sets[at]
		if s == nil || named[s] {
			continue
		}
		switch other := inSet[o]; {
		case other == nil && o.Size > 0:
			x.volume.problem(o, 0, "it is in no set, and files that are named alike are a set of %s in the type %s: views without it would look complete", s.Format, s.DType)
		case other != nil && other != s && other.Split == s.Split:
			x.volume.problem(o, 0, "it is in another set (%s, %s) than most files that are named alike (%s, %s): no view has them all", other.Format, other.DType, s.Format, s.DType)
		}
		n, ok := parseNumbered(baseOf(o.Name))
		if !ok {
			continue
		}
		run := place{at.dir, n.stem + "\x00" + n.of + "\x00" + n.end}
		if runs[run] == nil {
			order = append(order, run)
		}
		runs[run] = append(runs[run], o)
	}
	for _, run := range order {
		x.gaps(runs[run])
	}
}

// gaps reports the numbers that are missing among files that differ in one number only.
func (x *indexer) gaps(objects []*Object) {
	first, _ := parseNumbered(baseOf(objects[0].Name))
	var numbers []int64
	for _, o := range objects {
		n, _ := parseNumbered(baseOf(o.Name))
		numbers = append(numbers, n.number)
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	low, high := numbers[0], numbers[len(numbers)-1]
	count, err := strconv.ParseInt(first.of, 10, 64)
	if err != nil || count <= 0 { // no count, so the first number says where it begins, unless that is 0 or 1 by all appearance
		if missing := high - min(low, 1) + 1 - int64(len(numbers)); missing > 0 && missing < int64(len(numbers)) {
			x.lacks(objects[0], numbers, min(low, 1), high)
		}
		return
	}
	switch {
	case low > 0 && high < count: // it may count from 0 or from 1
		if have := int64(len(numbers)); have < count {
			x.volume.problem(objects[0], 0, "%d of the %d files are here that its name tells of", have, count)
		}
	case low == 0 && high == count: // as GPT-NeoX names pieces
		x.lacks(objects[0], numbers, 0, count)
	case low == 0:
		x.lacks(objects[0], numbers, 0, max(high, count-1))
	default:
		x.lacks(objects[0], numbers, 1, max(high, count))
	}
}

// mostGaps bounds the numbers that are named.
const mostGaps = 5

// lacks reports the numbers from low to high that are not in a sorted list.
func (x *indexer) lacks(o *Object, numbers []int64, low, high int64) {
	n, _ := parseNumbered(baseOf(o.Name))
	var gaps []string
	missing := high - low + 1 - int64(len(numbers))
	for at := low; at <= high && len(gaps) < mostGaps && int64(len(gaps)) < missing; at++ {
		if _, found := slices.BinarySearch(numbers, at); !found {
			gaps = append(gaps, fmt.Sprint(at))
		}
	}
	if missing <= 0 {
		return
	}
	more := ""
	if missing > int64(len(gaps)) {
		more = fmt.Sprintf(" and %d more", missing-int64(len(gaps)))
	}
	x.volume.problem(o, 0, "files %s%s are missing beside it, between %d and %d of %q", strings.Join(gaps, ", "), more, low, high, n.stem)
}
