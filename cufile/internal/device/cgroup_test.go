package device

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestGroupLimit has trees of control groups of both versions.
func TestGroupLimit(t *testing.T) {
	const (
		v1   = "32 31 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
		v2   = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
		none = math.MaxInt64
	)
	for name, c := range map[string]struct {
		groups, mounts string
		files          map[string]string
		want           int64
	}{
		"none":                               {"", "", nil, none},
		"no limit":                           {"0::/a\n", v2, map[string]string{"sys/fs/cgroup/a/memory.max": "max"}, none},
		"version 2":                          {"0::/a/b\n", v2, map[string]string{"sys/fs/cgroup/a/b/memory.max": "4096"}, 4096},
		"version 2, one above":               {"0::/a/b\n", v2, map[string]string{"sys/fs/cgroup/a/b/memory.max": "8192", "sys/fs/cgroup/a/memory.max": "4096"}, 4096},
		"version 2, the root of a container": {"0::/\n", v2, map[string]string{"sys/fs/cgroup/memory.max": "4096"}, 4096},
		"version 2, a group elsewhere":       {"0::/../other\n", v2, map[string]string{"sys/fs/cgroup/memory.max": "4096"}, 4096},
		"version 1": {"4:memory:/a/b\n1:cpu:/\n0::/\n", v1, map[string]string{"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 4096},
		"version 1, no limit": {"4:memory:/a\n", v1, map[string]string{"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712"}, none},
		"version 1, a container that sees its own group": {"4:memory:/kube/pod/x\n", "32 31 0:29 /kube/pod/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			map[string]string{"sys/fs/cgroup/memory/memory.limit_in_bytes": "4096", "sys/fs/cgroup/memory/kube/pod/x/memory.limit_in_bytes": "1"}, 4096},
		"both": {"4:memory:/a\n0::/b\n", v1 + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			map[string]string{"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "8192", "sys/fs/cgroup/unified/b/memory.max": "4096"}, 4096},
		"not to be read": {"nothing\n\n::\n4:memory:/a\n", "short\n- - -\n" + v1, map[string]string{"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "many"}, none},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			c.files = mapsOf(c.files, map[string]string{"proc/self/cgroup": c.groups, "proc/self/mountinfo": c.mounts})
			for file, text := range c.files {
				file = filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if most, what := GroupLimit(root); most != c.want || (what == "") != (c.want == none) {
				t.Errorf("%d by %q, want %d", most, what, c.want)
			}
		})
	}
}

func mapsOf(list ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range list {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

// TestGroupLimitOfARealGroup runs this test in a memory group of version 1.
func TestGroupLimitOfARealGroup(t *testing.T) {
	const child, limit = "HBMFS_TEST_GROUP_LIMIT", 512 << 20
	if os.Getenv(child) != "" {
		if most, what := GroupLimit("/"); most != limit {
			t.Errorf("%d by %q, want %d", most, what, limit)
		}
		return
	}
	group := filepath.Join("/sys/fs/cgroup/memory", "hbmfs-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(group, 0o700); err != nil {
		t.Skip("no memory group of version 1 can be made: ", err)
	}
	defer func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte(strconv.Itoa(limit)), 0o600); err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(group, "below")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Remove(below); err != nil {
			t.Error(err)
		}
	}()
	run := exec.CommandContext(t.Context(), "sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$1" -test.run TestGroupLimitOfARealGroup`, below, os.Args[0])
	run.Env = append(os.Environ(), child+"=1")
	if out, err := run.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}
