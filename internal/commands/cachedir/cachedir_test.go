package cachedir

import (
	"testing"

	"github.com/hbmfs/hbmfs/cache/store"
)

func TestChoice(t *testing.T) {
	sound := &store.Segment{Source: "s3://bucket/pile", Object: "train/a.b"}
	for _, c := range []struct {
		Filter
		want bool
	}{
		{Filter{All: true}, true},
		{Filter{Source: "s3://bucket/*"}, true},
		{Filter{Source: "s3://bucket"}, false},
		{Filter{Object: "train/?.b"}, true},
		{Filter{Object: "*a.b"}, true},
		{Filter{Object: "train/axb"}, false},
		{Filter{Object: "train/a+b"}, false},
		{Filter{Source: "s3://*", Object: "train/*"}, true},
		{Filter{Source: "s3://*", Object: "val/*"}, false},
	} {
		if got := c.fits(sound); got != c.want {
			t.Errorf("%+v: %v", c.Filter, got)
		}
		if damaged := (&store.Segment{Damage: "torn"}); c.fits(damaged) != c.All {
			t.Errorf("%+v takes a damaged segment, or leaves it", c.Filter)
		}
	}
}
