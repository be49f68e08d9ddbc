package cufile_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// remoteFiles is more than a user may have connections.
const remoteFiles = 300

// remoteMount mounts small files of a web server, behind a cache.
func remoteMount(t *testing.T) (m *blackbox.Mount, names []string, datas [][]byte, cache string) {
	t.Helper()
	blackbox.NeedRoot(t)
	files, index := map[string][]byte{}, map[string]map[string]string{"weight_map": {}}
	for i := range remoteFiles {
		name := fmt.Sprintf("part%03d", i)
		data := bytes.Repeat([]byte(fmt.Sprintf("<%d>", i)), 100+i)
		files[name], index["weight_map"][name] = data, name
		names, datas = append(names, name), append(datas, data)
	}
	listed, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	files["model.safetensors.index.json"] = listed
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		data, ok := files[filepath.Base(q.URL.Path)]
		if !ok {
			http.NotFound(w, q)
			return
		}
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(server.Close)
	b := blackbox.Given(t)
	cache = t.TempDir()
	if m, err = b.Mount(t.Context(), server.URL, t.TempDir(), "--cache-dir", cache, "--cache-min-free", "1"); err != nil {
		t.Fatal(err)
	}
	pid, err := m.DaemonPID()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if pid > 0 && !blackbox.Within(time.Minute, func() bool { return blackbox.Ended(pid) }) { // the folders go next
			t.Errorf("the daemon %d has not ended", pid)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range names {
		names[i] = m.Path(names[i])
	}
	return m, names, datas, cache
}

// TestFilesOfAMountShareAConnection opens and reads more files of a cache than a user may have connections: when none
// of them is on this machine, and when all were taken away after they were opened.
func TestFilesOfAMountShareAConnection(t *testing.T) {
	m, names, datas, cache := remoteMount(t)
	for _, state := range []string{"not here yet", "taken away"} {
		r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Arena: 1 << 20, Threads: 2, Descriptors: 8})
		if err != nil {
			t.Fatal(err)
		}
		files, errs := r.OpenMany(t.Context(), names)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		before := counters(t, m, `hbmfs_opens_total{path="daemon"}`, `hbmfs_opens_total{path="passthrough"}`)
		if state == "taken away" {
			b := blackbox.Given(t)
			if _, err := b.Output(t.Context(), "cache", "rm", cache, "--all"); err != nil {
				t.Fatal(err)
			}
		}
		for i, f := range files {
			if info := f.Info(); !info.Mounted || info.Note != "" {
				t.Fatalf("%s: %s: %+v, want a file whose place is known", state, names[i], info)
			}
			readSpan(t, f, datas[i], 0, f.Size())
			readSpan(t, f, datas[i], f.Size()/2, 10)
		}
		opens := counters(t, m, `hbmfs_opens_total{path="daemon"}`, `hbmfs_opens_total{path="passthrough"}`)
		if n := opens[0] + opens[1] - before[0] - before[1]; state == "taken away" && n < 260 { // some were open
			t.Errorf("%d files were opened in the mount after they were taken away", n)
		}
		if n := counters(t, m, "hbmfs_control_connections")[0]; n > 2 { // that of lookups, and the other
			t.Errorf("%s: %d connections for %d files", state, n, len(files))
		}
		for _, f := range files {
			errs = append(errs, closed(f))
		}
		if err := errors.Join(append(errs, closed(r))...); err != nil {
			t.Error(err)
		}
		left := func() bool {
			n := counters(t, m, "hbmfs_control_connections", "hbmfs_control_leases", "hbmfs_cache_filling_segments")
			return n[0] == 0 && n[1] == 0 && n[2] == 0
		}
		if !blackbox.Within(time.Minute, left) {
			t.Errorf("%s: %v connections and leases are left", state, counters(t, m, "hbmfs_control_connections", "hbmfs_control_leases"))
		}
	}
}
