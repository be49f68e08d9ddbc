package device

import (
	"iter"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// GroupLimit gives the most memory that the control groups of this process may have, and the file that says so. It is the smallest of its group and of
// those above it, as far as the process sees them, by version 1 and 2 of control groups. It is [math.MaxInt64] where there is no limit. root is "/" but in
// tests.
func GroupLimit(root string) (most int64, what string) {
	most = math.MaxInt64
	for g := range groups(root) {
		if limit := g.limit(); limit < most {
			most, what = limit, path.Join(g.folder, g.names().limit)
		}
	}
	return most, what
}

// MemoryLeft gives the memory that the page cache could have in the control groups of this process, and on the machine: all but what is used for other things.
func MemoryLeft(root string) int64 {
	left := int64(math.MaxInt64)
	for _, line := range lines(path.Join(root, "proc/meminfo")) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "MemAvailable:" {
			if kib, err := strconv.ParseInt(words[1], 10, 64); err == nil {
				left = kib << 10
			}
		}
	}
	for g := range groups(root) {
		if limit := g.limit(); limit < math.MaxInt64 {
			left = min(left, limit-g.unreclaimable())
		}
	}
	return max(left, 0)
}

// group is a control group that bounds this process's memory, in a hierarchy of version 1 or 2.
type group struct {
	folder string
	first  bool // version 1
}

// groupNames are the files of a group, and the words of memory.stat for all of its page cache, and for the part that is shared memory.
type groupNames struct{ limit, usage, cache, shared string }

func (g group) names() groupNames {
	if g.first {
		return groupNames{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"}
	}
	return groupNames{"memory.max", "memory.current", "file", "shmem"}
}

// limit is [math.MaxInt64] where there is none.
func (g group) limit() int64 {
	if limit, ok := g.number(g.names().limit); ok && limit < mostLimit {
		return limit
	}
	return math.MaxInt64
}

// unreclaimable is the memory that is no page cache of files.
func (g group) unreclaimable() int64 {
	names := g.names()
	usage, _ := g.number(names.usage)
	for _, line := range lines(path.Join(g.folder, "memory.stat")) {
		word, value, _ := strings.Cut(line, " ")
		switch n, err := strconv.ParseInt(value, 10, 64); {
		case err != nil:
		case word == names.cache:
			usage -= n
		case word == names.shared:
			usage += n
		}
	}
	return max(usage, 0)
}

func (g group) number(file string) (int64, bool) {
	n, err := strconv.ParseInt(lines(path.Join(g.folder, file))[0], 10, 64)
	return n, err == nil
}

// groups gives the process's memory groups, and those above them.
func groups(root string) iter.Seq[group] {
	return func(yield func(group) bool) {
		own := lines(path.Join(root, "proc/self/cgroup"))
		for _, line := range lines(path.Join(root, "proc/self/mountinfo")) {
			mount, about, _ := strings.Cut(line, " - ")
			place, super := strings.Fields(mount), strings.Fields(about)
			if len(place) < 5 || len(super) < 3 {
				continue
			}
			controller := ""
			if super[0] == "cgroup" && slices.Contains(strings.Split(super[2], ","), "memory") {
				controller = "memory"
			} else if super[0] != "cgroup2" {
				continue
			}
			for below := groupBelow(own, controller, place[3]); ; below = path.Dir(below) { // every group above bounds it, too
				if !yield(group{path.Join(root, place[4], below), controller != ""}) {
					return
				}
				if below == "/" {
					break
				}
			}
		}
	}
}

// mostLimit is a limit that is none: version 1 has a number near the largest.
const mostLimit = 1 << 60

// groupBelow gives the process's group of a controller, empty for version 2, below the group that a mount shows. A container may see only its own.
func groupBelow(own []string, controller, shown string) string {
	for _, line := range own {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 || !slices.Contains(strings.Split(parts[1], ","), controller) {
			continue
		}
		if below, ok := strings.CutPrefix(parts[2], strings.TrimSuffix(shown, "/")); ok && (below == "" || below[0] == '/') {
			return path.Join("/", below)
		}
	}
	return "/"
}

func lines(name string) []string {
	text, _ := os.ReadFile(name) // where there is none, there are no groups
	return strings.Split(string(text), "\n")
}

// MostMappings is the kernel's limit for the mappings of a process, 65,530 as a rule.
func MostMappings() int {
	most, err := strconv.Atoi(lines("/proc/sys/vm/max_map_count")[0])
	if err != nil {
		return 65530
	}
	return most
}
