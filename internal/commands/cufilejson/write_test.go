package cufilejson

import (
	"bytes"
	"encoding/json"
	"regexp"
	"testing"
)

// TestWhatIsWrittenIsGood reads what Write makes, without its comments, and compares sizes with libcufile's rules.
func TestWhatIsWrittenIsGood(t *testing.T) {
	const h200 = 140 << 30
	comment := regexp.MustCompile(`(?m)^ *//.*$`)
	for _, workload := range []string{Read, Checkpoint, Weights} {
		for _, n := range []Node{
			{},
			{GPU: "GPU 0, NVIDIA H200", HBM: h200, GPUs: 8, CPUs: 192, Filesystem: "ext4", Version: 1015, P2PDMA: true},
			{GPU: "GPU 0\nnext line", HBM: h200 + 12345, GPUs: 8, CPUs: 4, Filesystem: "xfs", Version: 1019, P2PDMA: true, Blocked: "a\nb */ \" c"},
		} {
			text, err := Write(n, workload)
			if err != nil {
				t.Fatal(err)
			}
			var file struct {
				Properties struct {
					Compat bool  `json:"allow_compat_mode"`
					Direct int64 `json:"max_direct_io_size_kb"`
					Buffer int64 `json:"per_buffer_cache_size_kb"`
					Cache  int64 `json:"max_device_cache_size_kb"`
					Pinned int64 `json:"max_device_pinned_mem_size_kb"`
					Batch  int64 `json:"io_batchsize"`
				}
			}
			if err := json.Unmarshal(comment.ReplaceAll(text, nil), &file); err != nil {
				t.Fatalf("%s: %v in\n%s", workload, err, text)
			}
			p := &file.Properties
			if p.Compat != (n.Blocked != "") || p.Direct%64 != 0 || p.Direct < p.Buffer || p.Buffer%64 != 0 || p.Cache < p.Buffer*p.Batch || p.Pinned%4 != 0 || p.Pinned < n.HBM>>10/4*4 {
				t.Errorf("%s: %+v of\n%s", workload, p, text)
			}
			if lines := bytes.Count(text, []byte("// ")); lines < 15 {
				t.Errorf("%s: %d comments, want one for each value", workload, lines)
			}
		}
	}
	if _, err := Write(Node{}, "sleep"); err == nil {
		t.Error("a workload that nobody knows is taken")
	}
}
