package kvadmin

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/observe/status"
)

func TestChoose(t *testing.T) {
	volume, err := json.Marshal(status.Status{KV: &status.KV{Namespaces: []status.Namespace{{Name: "a"}, {Name: "b"}, {Name: "c"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text, names string
		want        string // namespaces, or a part of the error
	}{
		{string(volume), "", "a b c"},
		{string(volume), "c a", "c a"},
		{string(volume), "a d", `/mnt/kv has no namespace "d": hbmfs kv ls /mnt/kv lists them`},
		{"{}", "", "/mnt/kv is no KV volume"},
		{"no JSON", "", "read the status of /mnt/kv"},
	} {
		v, err := choose("/mnt/kv", []byte(c.text), strings.Fields(c.names))
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q of %s: %v, want %q", c.names, c.text, err, c.want)
			}
			continue
		}
		var got []string
		for _, n := range v.Namespaces {
			got = append(got, n.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q of %s: %q, want %q", c.names, c.text, got, c.want)
		}
	}
}
