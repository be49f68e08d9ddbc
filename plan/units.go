package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Size is a number of bytes, written as "140GB", "64MiB" or a plain number.
type Size int64

const mostBytes = 1 << 60

// ParseSize reads a size: a number, and B, kB, MB, GB, TB, PB (powers of 1000) or KiB to PiB (powers of 1024).
func ParseSize(text string) (Size, error) {
	trimmed := strings.TrimSpace(text)
	cut := strings.LastIndexAny(trimmed, "0123456789.") + 1
	unit := 1.0
	switch name := strings.ToLower(strings.TrimSpace(trimmed[cut:])); name {
	case "", "b":
	default:
		power := strings.IndexByte("kmgtp", name[0]) + 1
		switch {
		case power > 0 && name[1:] == "b":
			unit = math.Pow(1000, float64(power))
		case power > 0 && name[1:] == "ib":
			unit = math.Pow(1024, float64(power))
		default:
			return 0, fmt.Errorf("%q is no size: write it as 140GB, 2TiB or a number of bytes", text)
		}
	}
	number, err := strconv.ParseFloat(trimmed[:cut], 64)
	if bytes := number * unit; err != nil || !(bytes >= 1) || bytes > mostBytes {
		return 0, fmt.Errorf("%q is no size from 1 byte to 1 EiB: write it as 140GB, 2TiB or a number of bytes", text)
	}
	return Size(number * unit), nil
}

// UnmarshalYAML reads a size from a description.
func (s *Size) UnmarshalYAML(n *yaml.Node) (err error) {
	*s, err = ParseSize(n.Value)
	return err
}

// String writes a size with three digits.
func (s Size) String() string {
	x, units := float64(s), []string{"B", "kB", "MB", "GB", "TB", "PB"}
	for x >= 999.5 && len(units) > 1 {
		x, units = x/1000, units[1:]
	}
	return strconv.FormatFloat(x, 'g', 3, 64) + " " + units[0]
}

// Seconds is a span of time, written as "30m" or "1h30m" in YAML.
type Seconds float64

// UnmarshalYAML reads a span of time from a description.
func (s *Seconds) UnmarshalYAML(n *yaml.Node) error {
	d, err := time.ParseDuration(n.Value)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is no span of time: write it as 30s, 15m or 6h", n.Value)
	}
	*s = Seconds(d.Seconds())
	return nil
}

// duration writes a range of seconds in the unit that suits it.
func duration(r Range) string {
	for _, u := range []struct {
		above float64
		name  string
	}{{2 * 86400, "d"}, {2 * 3600, "h"}, {120, "min"}, {1, "s"}, {1e-3, "ms"}, {0, "us"}} {
		if unit := map[string]float64{"d": 86400, "h": 3600, "min": 60, "s": 1, "ms": 1e-3, "us": 1e-6}[u.name]; r.Mid >= u.above {
			return r.scale(1/unit).String() + " " + u.name
		}
	}
	return r.String() + " s"
}
