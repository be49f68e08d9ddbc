package plan

import (
	"fmt"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hbmfs/hbmfs/internal/text/size"
)

// Size is a number of bytes, written as package size reads it.
type Size int64

// UnmarshalYAML reads a size from a description.
func (s *Size) UnmarshalYAML(n *yaml.Node) (err error) {
	bytes, err := size.Parse(n.Value)
	*s = Size(bytes)
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
		above, unit float64
		name        string
	}{{2 * 86400, 86400, "d"}, {2 * 3600, 3600, "h"}, {120, 60, "min"}, {1, 1, "s"}, {1e-3, 1e-3, "ms"}, {0, 1e-6, "us"}} {
		if r.Mid >= u.above {
			return r.scale(1/u.unit).String() + " " + u.name
		}
	}
	return r.String() + " s"
}
