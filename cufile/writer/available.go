package writer

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/hbmfs/hbmfs/cufile/internal/device"
)

// available is the most memory that may be brought, and the name of that limit. The kernel ends processes that
// bring more.
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
	if limit, file := device.GroupLimit("/"); limit < most {
		most, what = limit, "the most that the control group may have ("+path.Base(file)+")"
	}
	return most, what
}
