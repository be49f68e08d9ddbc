package writer

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// available is the most memory that may be brought, and what says so: the kernel ends processes that bring more.
func available() (most int64, what string) {
	most = math.MaxInt64
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
				if kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 54); err == nil {
					most, what = kib<<10, "the memory that is available (MemAvailable)"
				}
			}
		}
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return most, what
	}
	_, group, found := strings.Cut("\n"+string(text), "\n0::")
	group, _, _ = strings.Cut(group, "\n")
	for ; found && group != "." && group != ""; group = path.Dir(group) { // every group above bounds it, too
		text, err := os.ReadFile(path.Join("/sys/fs/cgroup", group, "memory.max"))
		if limit, parseErr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && parseErr == nil && limit < most {
			most, what = limit, "the most that the control group may have (memory.max)"
		}
		if group == "/" {
			break
		}
	}
	return most, what
}
