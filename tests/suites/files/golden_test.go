package files_test

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

func TestGoldenDatasets(t *testing.T) {
	blackbox.NeedFUSE(t)
	for name, want := range mounttest.Goldens(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time a mount waits for its processes
			source := mounttest.Golden(t, name)
			m := mount(t, source)
			if err := mounttest.CompareTrees(source, m.Point); err != nil {
				t.Error(err)
			}
			for split, tokens := range want.Splits {
				t.Run("views-"+split, func(t *testing.T) { checkViews(t, m, want, split, tokens) })
			}
			switch want.Format {
			case "webdataset":
				checkMembers(t, m)
			case "safetensors":
				checkTensors(t, m)
			}
			checkInspect(t, source, want)
		})
	}
}

// checkInspect asks inspect for what the views are compared with.
func checkInspect(t *testing.T, source string, want mounttest.Expectation) {
	t.Helper()
	r := run(t, "inspect", "--json", source)
	if r.Code != 0 {
		t.Fatalf("inspect ended with %d, want 0: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	var got inspection
	must(t, json.Unmarshal([]byte(r.Stdout), &got))
	tokens, expected := int64(0), int64(0)
	for _, s := range got.Sets {
		tokens += max(s.Tokens, 0)
	}
	stream := false
	for _, s := range want.Splits {
		expected += s.Tokens
		stream = stream || want.HasTokens(s)
	}
	if stream && tokens != expected {
		t.Errorf("inspect counts %d tokens, want %d", tokens, expected)
	}
}

// inspection is the part of inspect's JSON that these tests read.
type inspection struct {
	Sets []struct {
		Tokens int64 `json:"tokens"`
	} `json:"sets"`
	Problems []struct {
		Object string `json:"object"`
		Detail string `json:"detail"`
	} `json:"problems"`
}

func TestViewsAreListedOnlyOnRequest(t *testing.T) {
	source := mounttest.Golden(t, "nanogpt")
	hidden := mount(t, source)
	for _, name := range []string{"", "views", "status", "metrics"} {
		if _, err := os.Stat(hidden.Path(".hbmfs", name)); err != nil {
			t.Errorf("not listed, but there by name: %v", err)
		}
	}
	names, err := mounttest.ListTree(hidden.Point)
	must(t, err)
	if slices.Contains(names, ".hbmfs") {
		t.Errorf("a walk finds .hbmfs: %q", names)
	}
	shown := mount(t, source, "--show-views")
	names, err = mounttest.ListTree(shown.Point)
	must(t, err)
	if !slices.Contains(names, ".hbmfs/views") || !slices.Contains(names, ".hbmfs/status") {
		t.Errorf("--show-views, but a walk finds only %q", names)
	}
}

func TestStatusAndMetrics(t *testing.T) {
	m := mount(t, mounttest.Golden(t, "megatron-merge"))
	if _, err := os.ReadFile(m.Path(".hbmfs", "views", "tokens.bin")); err != nil {
		t.Fatal(err) // asks for the views, so that the status knows them
	}
	s := status(t, m)
	if s.PID != m.PID || s.Objects != 4 || s.Source != m.Source || s.MountPoint != m.Point || s.Indexing {
		t.Errorf("status says %+v of the daemon %d of %s on %s", s, m.PID, m.Source, m.Point)
	}
	if len(s.Sets) != 1 || s.Sets[0].Tokens != 344 || s.Sets[0].Documents != 9 || s.Sets[0].Shards != 2 {
		t.Errorf("status says %+v, want one set of 2 shards with 344 tokens in 9 documents", s.Sets)
	}
	metrics, err := os.ReadFile(m.Path(".hbmfs", "metrics"))
	must(t, err)
	for _, line := range []string{"hbmfs_objects 4", "hbmfs_indexing 0", "# TYPE hbmfs_reads_total counter"} {
		if !bytes.Contains(metrics, []byte(line+"\n")) {
			t.Errorf("metrics have no line %q:\n%s", line, metrics)
		}
	}
}

// mountStatus is the part of .hbmfs/status that these tests read.
type mountStatus struct {
	PID         int    `json:"pid"`
	Source      string `json:"source"`
	MountPoint  string `json:"mount_point"`
	Objects     int    `json:"objects"`
	Indexing    bool   `json:"indexing"`
	Passthrough struct {
		On  bool   `json:"on"`
		Why string `json:"why"`
	} `json:"passthrough"`
	Sets []struct {
		Tokens    int64 `json:"tokens"`
		Documents int64 `json:"documents"`
		Shards    int   `json:"shards"`
	} `json:"sets"`
}

func status(t *testing.T, m *mounted) mountStatus {
	t.Helper()
	data, err := os.ReadFile(m.Path(".hbmfs", "status"))
	must(t, err)
	var s mountStatus
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatalf("status is no JSON: %v\n%s", err, data)
	}
	return s
}
