package s3origin

import (
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/layout"
)

// TestComplete has checkpoints that are complete or not, at the top and below, beside what is no drain's.
func TestComplete(t *testing.T) {
	for _, c := range []struct{ names, want []string }{
		{[]string{"a/b", "c"}, []string{"a/b", "c"}},
		{[]string{"step-1/x", "step-1/" + runManifest}, []string{"step-1/x", "step-1/" + runManifest}}, // no drain's
		{
			[]string{RunMark, "step-1/x", "step-1/d/y", "step-1/" + runManifest, "step-2/x", "step-2/d/" + runManifest, "README"},
			[]string{"step-1/x", "step-1/d/y", "step-1/" + runManifest, "README"},
		},
		{
			[]string{"run/" + RunMark, "run/s/x", "run/s/" + runManifest, "run/t/x", "runs/t/x", "other/" + runManifest + "/x"},
			[]string{"run/s/x", "run/s/" + runManifest, "runs/t/x", "other/" + runManifest + "/x"},
		},
		{[]string{RunMark, "step-1/x"}, nil},
	} {
		var objects []*layout.Object
		for _, name := range c.names {
			objects = append(objects, &layout.Object{Name: name})
		}
		var got []string
		for _, o := range complete(objects) {
			got = append(got, o.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("of %q there are %q, want %q", c.names, got, c.want)
		}
	}
}
