package device

import (
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
	groups := lines(path.Join(root, "proc/self/cgroup"))
	for _, line := range lines(path.Join(root, "proc/self/mountinfo")) {
		mount, about, _ := strings.Cut(line, " - ")
		place, super := strings.Fields(mount), strings.Fields(about)
		if len(place) < 5 || len(super) < 3 {
			continue
		}
		controller, file := "", "memory.max"
		if super[0] == "cgroup" && slices.Contains(strings.Split(super[2], ","), "memory") {
			controller, file = "memory", "memory.limit_in_bytes"
		} else if super[0] != "cgroup2" {
			continue
		}
		for group := groupBelow(groups, controller, place[3]); ; group = path.Dir(group) { // every group above bounds it, too
			name := path.Join(root, place[4], group, file)
			text, err := os.ReadFile(name)
			if limit, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil && limit < min(most, mostLimit) {
				most, what = limit, name
			}
			if group == "/" {
				break
			}
		}
	}
	return most, what
}

// mostLimit is a limit that is none: version 1 has a number near the largest.
const mostLimit = 1 << 60

// groupBelow gives the process's group of a controller, empty for version 2, below the group that a mount shows. A container may see only its own.
func groupBelow(groups []string, controller, shown string) string {
	for _, line := range groups {
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
