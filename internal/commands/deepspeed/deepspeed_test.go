package deepspeed

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// place is a machine: /nvme is XFS, /mnt/pile a mount of hbmfs.
func place(path string) (string, error) {
	kind, ok := map[string]string{"/nvme": "xfs", "/mnt/pile": "fuse.hbmfs", "/shm": "tmpfs", "/nfs": "nfs4", "/fuse": "fuse.sshfs"}[path]
	if !ok {
		return "", errors.New("no such directory")
	}
	return kind, nil
}

// with makes a configuration that offloads to a path, with a section aio.
func with(path, aio string) string {
	return fmt.Sprintf(`{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": %q}}, "aio": %s}`, path, aio)
}

func TestLint(t *testing.T) {
	for text, want := range map[string]string{ // "" for nothing; else "LEVEL KEY: words"
		with("/nvme", `{"block_size": 1048576, "queue_depth": 16, "intra_op_parallelism": 4, "single_submit": false, "overlap_events": true, "use_gds": true}`): "",
		with("/nvme", `{"block_size": 262144, "queue_depth": 1024, "thread_count": 16}`):                                                                        "", // libaio has other bounds
		with("/nvme", `{"thread_count": 9, "use_gds": true}`):                                                                                                   "error aio.thread_count: becomes execution.max_request_parallelism of cuFile",
		with("/nvme", `{"queue_depth": 257, "use_gds": true}`):                                                                                                  "error aio.queue_depth: becomes execution.max_io_queue_depth of cuFile",
		with("/nvme", `{"block_size": 69632, "use_gds": true}`):                                                                                                 "error aio.block_size: becomes properties.max_direct_io_size_kb of cuFile, which must be a multiple of 64",
		with("/nvme", `{"block_size": 1000000}`):                                                                                                                "error aio.block_size: 1000000 is no multiple of 4096",
		with("/nvme", `{"block_size": 1024}`):                                                                                                                   "error aio.block_size: 1024 is no multiple",
		with("/nvme", `{"block_size": 8192}`):                                                                                                                   "warning aio.block_size: 8192 bytes are little",
		with("/nvme", `{"block_size": 1e6}`):                                                                                                                    "error aio.block_size: must be a whole number",
		with("/nvme", `{"block_size": "1048576"}`):                                                                                                              "error aio.block_size: must be a whole number",
		with("/nvme", `{"queue_depth": 0}`):                                                                                                                     "error aio.queue_depth: must be a whole number",
		with("/nvme", `{"queue_depth": 99999999999}`):                                                                                                           "error aio.queue_depth: must be a whole number",
		with("/nvme", `{"use_gds": "true"}`):                                                                                                                    "error aio.use_gds: must be true or false",
		with("/nvme", `{"use_dgs": true}`):                                                                                                                      "error aio.use_dgs: is not known, and ignored: did you mean use_gds?",
		with("/nvme", `{"io_backend": "uring"}`):                                                                                                                `error aio.io_backend: "uring" is none of`,
		with("/nvme", `{"io_backend": "posix", "use_gds": true}`):                                                                                               "error aio.use_gds: needs io_backend async_io",
		with("/nvme", `{"thread_count": 2, "intra_op_parallelism": 4}`):                                                                                         "error aio.thread_count: is 2, and intra_op_parallelism is 4",
		with("/nvme", `[]`): "error aio: must be an object",
		with("/nvme", `{"use_gds": true, "use_gds": false}`): "error use_gds: is there twice",
		with("/mnt/pile", `{}`):                              "error zero_optimization.offload_param.nvme_path: /mnt/pile is a mount of hbmfs",
		with("/shm", `{"use_gds": true}`):                    "error zero_optimization.offload_param.nvme_path: /shm is on tmpfs, where cuFile is never direct",
		with("/shm", `{}`):                                   "warning zero_optimization.offload_param.nvme_path: /shm is in memory",
		with("/fuse", `{"use_gds": true}`):                   "error zero_optimization.offload_param.nvme_path: /fuse is on fuse.sshfs",
		with("/nfs", `{"use_gds": true}`):                    "warning zero_optimization.offload_param.nvme_path: /nfs is on nfs4: hbmfs check /nfs",
		with("/none", `{}`):                                  "error zero_optimization.offload_param.nvme_path: no such directory",
		with("nvme", `{}`):                                   "error zero_optimization.offload_param.nvme_path: must be the path of a directory",
		`{"aio": {}}`:                                        "warning aio: has no effect on ZeRO",
		`{"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}`:                   "error zero_optimization.offload_optimizer.nvme_path: is not there",
		`{"zero_optimization": {"offload_param": {"device": "cpu", "nvme_path": "/nvme"}}}`:  "warning zero_optimization.offload_param.nvme_path: has no effect",
		`{"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/nvme"}}}`: "warning aio: is not there",
		`{"zero_optimization": {"offload_param": {"device": "cpu", "use_gds": true}}}`:       "error zero_optimization.offload_param.use_gds: is ignored here",
		`{"use_gds": true}`:                   "error use_gds: is ignored here: it belongs in aio",
		`{"train_batch_size": 8}`:             "",
		`{"a": 1,}`:                           "error : has comments or commas too many",
		"{\n // why\n}":                       "error : has comments or commas too many",
		`{"a"`:                                "error : is no JSON: the file ends early",
		`{"a" 1}`:                             "error : is no JSON",
		`[]`:                                  "error : must be an object",
		strings.Repeat(" ", MaxSize+1) + "{}": "error : 4194307 bytes are no configuration",
	} {
		var said []string
		for _, f := range Lint([]byte(text), place) {
			said = append(said, fmt.Sprintf("%s %s: %s", f.Level, f.Key, f.Message))
		}
		if want == "" && len(said) > 0 || want != "" && !strings.HasPrefix(strings.Join(said, "\n"), want) && !strings.Contains(strings.Join(said, "\n"), "\n"+want) {
			t.Errorf("%.200s\nsays\n%s\nwant %q", text, strings.Join(said, "\n"), want)
		}
	}
}

func TestLintSaysWhere(t *testing.T) {
	got := Lint([]byte("{\n  \"aio\": {\n    \"ümlaut\": 1, \"blocksize\": 1048576}\n}"), place)
	places := map[string]string{"aio": "2:10", "aio.ümlaut": "3:15", "aio.blocksize": "3:31"}
	if len(got) != len(places) {
		t.Fatalf("%v", got)
	}
	for _, f := range got {
		if at := fmt.Sprintf("%d:%d", f.Line, f.Column); at != places[f.Key] {
			t.Errorf("%s is at %s, want %s", f.Key, at, places[f.Key])
		}
	}
}

// A configuration without errors is one that Python's json reads, and places lie in the text.
func FuzzLint(f *testing.F) {
	f.Add(with("/nvme", `{"block_size": 1048576, "use_gds": true}`))
	f.Add(`{"aio": {"use_gds": true, "queue_depth": 999}}`)
	f.Add("{\n\"aio\": [1, {\"a\": \"b\"}]")
	f.Fuzz(func(t *testing.T, text string) {
		findings := Lint([]byte(text), place)
		bad := false
		for _, x := range findings {
			bad = bad || x.Level == Error
			if x.Line < 1 || x.Column < 1 || x.Line > strings.Count(text, "\n")+1 || x.Message == "" {
				t.Errorf("%q: %+v", text, x)
			}
		}
		if !bad && !json.Valid([]byte(text)) {
			t.Errorf("%q is no JSON, and nothing is wrong", text)
		}
	})
}

// A configuration that is cut off is wrong at every place but its end.
func TestLintOfTruncatedFiles(t *testing.T) {
	text := with("/nvme", `{"block_size": 1048576, "use_gds": true}`)
	for n := range len(text) {
		if len(Lint([]byte(text[:n]), place)) == 0 {
			t.Errorf("nothing is wrong with %q", text[:n])
		}
	}
}
