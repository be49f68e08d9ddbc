package cachedir

import (
	"testing"

	"github.com/hbmfs/hbmfs/cache/store"
)

func TestChoice(t *testing.T) {
	sound := &store.Segment{Source: "s3://bucket/pile", Object: "train/a.b"}
	for _, c := range []struct {
		Choice
		want bool
	}{
		{Choice{All: true}, true},
		{Choice{Source: "s3://bucket/*"}, true},
		{Choice{Source: "s3://bucket"}, false},
		{Choice{Object: "train/?.b"}, true},
		{Choice{Object: "*a.b"}, true},
		{Choice{Object: "train/axb"}, false},
		{Choice{Object: "train/a+b"}, false},
		{Choice{Source: "s3://*", Object: "train/*"}, true},
		{Choice{Source: "s3://*", Object: "val/*"}, false},
	} {
		if got := c.fits(sound); got != c.want {
			t.Errorf("%+v: %v", c.Choice, got)
		}
		if damaged := (&store.Segment{Damage: "torn"}); c.fits(damaged) != c.All {
			t.Errorf("%+v takes a damaged segment, or leaves it", c.Choice)
		}
	}
}
