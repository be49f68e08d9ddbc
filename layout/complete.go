package layout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Shards that are missing, and files that look like shards and are in no set with them, make a stream that is shorter than it looks. Names
// tell of both in every format: shards of a set are numbered, and differ in their digits only.

// label is a base name as shards differ in it.
type label struct {
	alike   string   // the name with its numbers replaced, so that the shards of a set have one
	numbers []int64  // in the order of the name; the last one is counted where there is a count
	before  []string // the text before each number
	count   int64    // such as 5 in -of-00005, -1 for none
}

// labelOf finds the numbers in a base name. Those before a count are all that are looked at, and a hash of Hugging Face's behind it is left out.
func labelOf(base string) label {
	l := label{count: -1}
	stem, end := base, ""
	for _, of := range []string{"-of-", "_of_"} {
		i := strings.Index(base, of)
		if i < 1 || !isDigit(base[i-1]) {
			continue
		}
		tail := strings.TrimLeft(base[i+len(of):], "0123456789")
		count := base[i+len(of) : len(base)-len(tail)]
		if n, err := strconv.ParseInt(count, 10, 64); err == nil && n > 0 {
			hash, extension, _ := strings.Cut(tail, ".")
			if len(hash) == 17 && hash[0] == '-' && strings.Trim(hash[1:], "0123456789abcdef") == "" {
				tail = "." + extension
			}
			l.count, stem, end = n, base[:i], of+count+tail
			break
		}
	}
	var alike strings.Builder
	for i := 0; i < len(stem); {
		digits := len(stem[i:]) - len(strings.TrimLeft(stem[i:], "0123456789"))
		if digits == 0 {
			alike.WriteByte(stem[i])
			i++
			continue
		}
		if n, err := strconv.ParseInt(stem[i:i+digits], 10, 64); err == nil {
			l.numbers, l.before = append(l.numbers, n), append(l.before, stem[:i])
			alike.WriteByte('0')
		} else {
			alike.WriteString(stem[i : i+digits])
		}
		i += digits
	}
	l.alike = alike.String() + end
	return l
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// shardsAreNamed tells whether an index names all shards of a set, and was compared with them.
func shardsAreNamed(s *Set) bool {
	return s.Format == "mds" || s.Format == "litdata" || slices.ContainsFunc(s.Shards, func(h *Shard) bool {
		return slices.ContainsFunc(h.Objects, func(o *Object) bool { return strings.HasSuffix(o.Name, ".safetensors.index.json") })
	})
}

// numbered is an object with its label.
type numbered struct {
	object *Object
	label
}

// complete reports, for all sets, numbers that are missing and files that are in no set with those that are named alike.
func (x *indexer) complete() {
	type place struct{ dir, alike string }
	of := func(o *Object) (place, label) {
		l := labelOf(baseOf(o.Name))
		return place{dirOf(o.Name), l.alike}, l
	}
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
			if at, _ := of(h.Objects[0]); h.Name == h.Objects[0].Name {
				most[s][at]++
				if first := sets[at]; first == nil || most[s][at] > most[first][at] {
					sets[at] = s
				}
			}
		}
	}
	runs, order := map[place][]numbered{}, []place(nil)
	for _, o := range x.volume.Objects {
		at, l := of(o)
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
		if runs[at] == nil {
			order = append(order, at)
		}
		runs[at] = append(runs[at], numbered{o, l})
	}
	for _, at := range order {
		x.gaps(runs[at], 0)
	}
}

// gaps reports the numbers that are missing among files that are named alike, and whose numbers before number k are the same.
func (x *indexer) gaps(files []numbered, k int) {
	if k == len(files[0].numbers) {
		return
	}
	numbers, groups := grouped(files, func(n numbered) int64 { return n.numbers[k] })
	slices.Sort(numbers)
	first, low, high, have := &files[0], numbers[0], numbers[len(numbers)-1], int64(len(numbers))
	if count := first.count; count < 0 || k < len(first.numbers)-1 {
		// Without a count the first number says where it begins, unless that is 0 or 1 by all appearance.
		if missing := high - min(low, 1) + 1 - have; missing > 0 && missing < have {
			x.lacks(first, k, numbers, min(low, 1), high)
		}
	} else {
		switch {
		case low > 0 && high < count: // it may count from 0 or from 1
			if have < count {
				x.volume.problem(first.object, 0, "%d of the %d files are here that its name tells of", have, count)
			}
		case low == 0 && high == count: // as GPT-NeoX names pieces
			x.lacks(first, k, numbers, 0, count)
		case low == 0:
			x.lacks(first, k, numbers, 0, max(high, count-1))
		default:
			x.lacks(first, k, numbers, 1, max(high, count))
		}
	}
	for _, group := range groups {
		x.gaps(group, k+1)
	}
}

// mostGaps bounds the numbers that are named.
const mostGaps = 5

// lacks reports the numbers from low to high that are not in a sorted list of the numbers k of files.
func (x *indexer) lacks(first *numbered, k int, numbers []int64, low, high int64) {
	var gaps []string
	missing := high - low + 1 - int64(len(numbers))
	if missing <= 0 {
		return
	}
	for at := low; at <= high && len(gaps) < mostGaps && int64(len(gaps)) < missing; at++ {
		if _, found := slices.BinarySearch(numbers, at); !found {
			gaps = append(gaps, fmt.Sprint(at))
		}
	}
	more := ""
	if missing > int64(len(gaps)) {
		more = fmt.Sprintf(" and %d more", missing-int64(len(gaps)))
	}
	x.volume.problem(first.object, 0, "files %s%s are missing beside it, between %d and %d of %q", strings.Join(gaps, ", "), more, low, high, first.before[k])
}
