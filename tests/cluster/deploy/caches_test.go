package deploy_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cacheConf gives the nginx.conf that the chart makes of a file of values, with its paths below dir.
func cacheConf(t *testing.T, values, dir string) string {
	t.Helper()
	for _, d := range parse(t, values, []byte(output(t, true, given(t, "HBMFS_K8SCHECK"), "render", chart, filepath.Join(chart, "ci", values)))) {
		if d.body["kind"] != "ConfigMap" {
			continue
		}
		text := d.body["data"].(map[string]any)["nginx.conf"].(string)
		return strings.NewReplacer("/cache/shards", dir+"/cache", "/tmp/", dir+"/", "worker_processes auto", "worker_processes 1", "worker_rlimit_nofile 65536;", "").Replace(text)
	}
	t.Fatalf("%s makes no ConfigMap", values)
	return ""
}

func writeConf(t *testing.T, dir, text string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// nginx takes the configuration of the caches, with TLS and without.
func TestCachesAreConfigured(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("needs nginx")
	}
	for _, values := range []string{"everything.yaml", "caches.yaml"} {
		dir := t.TempDir()
		if out, err := exec.Command(nginx, "-t", "-e", "stderr", "-c", writeConf(t, dir, cacheConf(t, values, dir))).CombinedOutput(); err != nil && !strings.Contains(string(out), "syntax is ok") {
			t.Errorf("%s: %v\n%s", values, err, out)
		}
	}
}

// A cache of the chart brings each slice once, answers ranges, and refuses what has another meaning under the same key.
func TestACacheOfTheChart(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("needs nginx")
	}
	data := strings.Repeat("0123456789", 1_000_000)
	asked := make(chan string, 100)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Range") + r.Header.Get("Authorization")
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), strings.NewReader(data))
	}))
	defer origin.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close() // nginx takes it
	dir := t.TempDir()
	text := strings.NewReplacer("listen 8080", "listen "+address, "http://10.0.0.5:9000", origin.URL, `Host "10.0.0.5:9000"`, "Host $proxy_host").Replace(cacheConf(t, "caches.yaml", dir))
	if os.Geteuid() == 0 { // its workers are another user
		text = "user root;\n" + text
	}
	cmd := exec.Command(nginx, "-p", dir, "-e", "stderr", "-c", writeConf(t, dir, text), "-g", "daemon off;")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}()
	get := func(path, byteRange string) (status int, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Range", byteRange)
		r.Header.Set("Authorization", "secret")
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			answer, err := http.DefaultClient.Do(r)
			if err != nil && time.Now().Before(end) { // it does not listen yet
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			if err := answer.Body.Close(); err != nil {
				t.Error(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			return answer.StatusCode, string(text)
		}
	}
	for range 3 {
		if status, body := get("/bucket/a.bin", "bytes=4194300-4194313"); status != http.StatusPartialContent || body != data[4194300:4194314] {
			t.Errorf("%d, %q", status, body)
		}
	}
	if status, _ := get("/bucket/a.bin?versionId=1", "bytes=0-9"); status != http.StatusForbidden {
		t.Errorf("another version has the same key: %d", status)
	}
	var ranges []string
	for len(asked) > 0 {
		ranges = append(ranges, <-asked)
	}
	if got := strings.Join(ranges, " "); got != "bytes=0-4194303 bytes=4194304-8388607" {
		t.Errorf("the origin was asked for %s", got)
	}
}
