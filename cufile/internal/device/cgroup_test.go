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
			root := tree(t, c.files, c.groups, c.mounts)
			if most, what := GroupLimit(root); most != c.want || (what == "") != (c.want == none) {
				t.Errorf("%d by %q, want %d", most, what, c.want)
			}
		})
	}
}

// tree makes a root with files, and with what says of a process's groups.
func tree(t *testing.T, files map[string]string, groups, mounts string) string {
	t.Helper()
	root := t.TempDir()
	for file, text := range mapsOf(files, map[string]string{"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}) {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestMemoryLeft has groups of both versions that use memory for page cache, shared memory and other things.
func TestMemoryLeft(t *testing.T) {
	const (
		v1 = "32 31 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
		v2 = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
	)
	for name, c := range map[string]struct {
		groups, mounts string
		files          map[string]string
		want           int64
	}{
		"nothing is known": {"", "", nil, math.MaxInt64},
		"the machine":      {"0::/\n", v2, map[string]string{"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:       4 kB\n"}, 4096},
		"version 2": {"0::/a\n", v2, map[string]string{"proc/meminfo": "MemAvailable: 100 kB\n", "sys/fs/cgroup/a/memory.max": "10000\n",
			"sys/fs/cgroup/a/memory.current": "9000\n", "sys/fs/cgroup/a/memory.stat": "anon 2000\nfile 7000\nshmem 500\n"}, 10000 - 9000 + 7000 - 500},
		"version 1, the group above": {"4:memory:/a/b\n", v1, map[string]string{"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "20000",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "10000", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "6000",
			"sys/fs/cgroup/memory/a/memory.stat": "cache 1\nshmem 1\ntotal_cache 1000\ntotal_shmem 100\n"}, 10000 - 6000 + 1000 - 100},
		"more than the limit": {"0::/a\n", v2, map[string]string{"sys/fs/cgroup/a/memory.max": "10", "sys/fs/cgroup/a/memory.current": "11"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if left := MemoryLeft(tree(t, c.files, c.groups, c.mounts)); left != c.want {
				t.Errorf("%d bytes are left, want %d", left, c.want)
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
