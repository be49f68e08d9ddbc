package origins_test

import (
	"encoding/json"
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// TestLookWithoutAMount has ls and inspect say of a remote source what they say of the same files here.
func TestLookWithoutAMount(t *testing.T) {
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		files := shards()
		s.PutAll(t, files)
		out, err := suite.Output(t.Context(), "ls", "--json", s.Source)
		must(t, err)
		var listed struct {
			Files []struct {
				Name    string
				Size    int64
				Version string
			}
			Problems []any
		}
		must(t, json.Unmarshal(out, &listed))
		seen := 0
		for _, f := range listed.Files {
			if data, ok := files[f.Name]; ok && int64(len(data)) == f.Size && f.Version != "" {
				seen++
			} else if f.Name != "index.json" {
				t.Errorf("%+v is listed", f)
			}
		}
		if seen != len(files) || len(listed.Problems) > 0 {
			t.Errorf("%s", out)
		}
		if s.Indexed { // by an index that is none of a format's, which inspect says
			return
		}
		out, err = suite.Output(t.Context(), "inspect", "--json", "--dtype", "u16", s.Source)
		must(t, err)
		var report struct {
			Sets []struct {
				Format string
				Tokens int64
			}
		}
		must(t, json.Unmarshal(out, &report))
		if len(report.Sets) != 1 || report.Sets[0].Format != "tokens" || report.Sets[0].Tokens != 20*(100<<10)+190 {
			t.Errorf("%s", out)
		}
	})
}
