package origins_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// cacheConfig is nginx as docs/guide/many-nodes.md has it before an origin.
const cacheConfig = `
daemon off;
master_process off;
pid pid;
error_log log warn;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
  proxy_cache_path cache keys_zone=shards:10m max_size=1g inactive=7d use_temp_path=off;
  server {
    listen unix:socket;
    location / {
      slice 1m;
      proxy_cache shards;
      proxy_cache_key $uri$slice_range;
      proxy_cache_valid 200 206 7d;
      proxy_cache_lock on;
      proxy_cache_lock_timeout 60s;
      proxy_cache_lock_age 60s;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Range $slice_range;
      proxy_pass ORIGIN;
    }
  }
}
`

// newCaches starts caches before a site, each with a proxy before it.
func newCaches(t *testing.T, s *sitetest.Site, n int) (caches []*sitetest.Proxy, addresses string) {
	t.Helper()
	servers.NeedNginx(t)
	var urls []string
	for range n {
		started, err := sitetest.StartNginx(suite.NewDir(t), strings.ReplaceAll(cacheConfig, "ORIGIN", s.URL))
		must(t, err)
		t.Cleanup(func() { must(t, started.Stop()) })
		p := sitetest.NewProxy(t, started.Socket)
		caches, urls = append(caches, p), append(urls, p.URL)
	}
	return caches, strings.Join(urls, ",")
}

// shards are what the nodes of these tests read. They are so many that none of two caches has all of them, whatever their ports are: that
// falls to 1 of 500,000 runs.
func shards() map[string][]byte {
	files := map[string][]byte{}
	for i := range 20 {
		files[fmt.Sprintf("train-%02d.bin", i)] = sitetest.Tokens(100<<10 + i)
	}
	return files
}

// gave is how many bytes a server was asked for of these files.
func gave(p *sitetest.Proxy, files map[string][]byte) (n int64) {
	for _, a := range p.Asked() {
		size := int64(len(files[filepath.Base(a.Path)]))
		n += max(0, min(a.To+1, size)-a.From)
	}
	return n
}

func endpoints(t *testing.T, m *sitetest.Mounted) map[string]status.Endpoint {
	t.Helper()
	out := map[string]status.Endpoint{}
	for _, e := range m.Status(t).Origin.Endpoints {
		out[e.Name] = e
	}
	return out
}

// Four nodes read the same dataset at once through two caches: the origin gives it once.
func TestManyNodesReadOnce(t *testing.T) {
	blackbox.NeedFUSE(t)
	s, files := servers.HTTPSite(t), shards()
	s.PutAll(t, files)
	caches, addresses := newCaches(t, s, 2)
	var nodes sync.WaitGroup
	for range 4 {
		m := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag, "--through", addresses)
		nodes.Go(func() { m.Compare(t, files) })
	}
	nodes.Wait()
	var size int64
	for _, data := range files {
		size += int64(len(data))
	}
	if n := gave(s.Proxy, files); n < size || n > size*102/100 {
		t.Errorf("the origin gave %d bytes of %d", n, size)
	}
	if a, b := gave(caches[0], files), gave(caches[1], files); a == 0 || b == 0 || a+b < 4*size {
		t.Errorf("the caches gave %d and %d bytes of 4 times %d", a, b, size)
	}
}

// A cache goes, lies or hangs while a node reads. No read fails, all bytes are right, and the status says which cache it was.
func TestCachesThatFail(t *testing.T) {
	blackbox.NeedFUSE(t)
	for name, c := range map[string]struct {
		fault  sitetest.Fault
		answer func(w http.ResponseWriter, r *http.Request) bool
		wrong  bool
	}{
		"goes":        {fault: sitetest.Down},
		"is out":      {fault: sitetest.ServerFail},
		"resets":      {fault: sitetest.Reset},
		"gives half":  {fault: sitetest.Short, wrong: true},
		"other range": {fault: sitetest.OtherRange, wrong: true},
		"other version": {wrong: true, answer: func(w http.ResponseWriter, r *http.Request) bool {
			from, to, _ := blackbox.ParseRange(r.Header.Get("Range"))
			w.Header().Set("ETag", `"other"`)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, to+1))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(make([]byte, to-from+1)) // the reader has gone by now, perhaps
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, files := servers.HTTPSite(t), shards()
			s.PutAll(t, files)
			caches, addresses := newCaches(t, s, 2)
			bad := caches[0]
			m := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag, "--through", addresses)
			bad.SetFault(func(int, sitetest.Asked) sitetest.Fault { return c.fault })
			bad.SetAnswer(c.answer)
			m.Compare(t, files)
			e := endpoints(t, m)
			if is := e[bad.URL]; (is.Wrong > 0) != c.wrong || is.Wrong+is.Failed == 0 {
				t.Errorf("%+v", is)
			}
			if is := e[caches[1].URL]; is.Wrong+is.Failed > 0 || is.Bytes == 0 {
				t.Errorf("the other cache: %+v", is)
			}
		})
	}
}

// A bucket is read through another server that has its objects, as a cache of S3 has them.
func TestBucketThroughCaches(t *testing.T) {
	blackbox.NeedFUSE(t)
	s, files := servers.S3Site(t), shards()
	s.PutAll(t, files)
	near := sitetest.NewProxy(t, s3.Socket)
	source := strings.Replace(s.Source, "endpoint="+s.URL, "endpoint="+near.URL+"&origin="+s.URL, 1)
	m := servers.Mount(t, source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag)
	m.Compare(t, files)
	if len(s.Asked()) > 0 || len(near.Asked()) == 0 {
		t.Errorf("%d ranges of the origin, %d of the cache", len(s.Asked()), len(near.Asked()))
	}
}

// A mount of one object goes on with another daemon: it asks for the same object, from the same cache.
func TestOneObjectOutlivesItsDaemon(t *testing.T) {
	blackbox.NeedRoot(t)
	s := servers.S3Site(t)
	data := sitetest.Tokens(4 << 20)
	s.Put(t, "deep/train.bin", data)
	near := sitetest.NewProxy(t, s3.Socket)
	for name, source := range map[string]string{
		"alone":   strings.Replace(s.Source, "?", "/deep/train.bin?", 1),
		"through": strings.Replace(strings.Replace(s.Source, "?", "/deep/train.bin?", 1), "endpoint="+s.URL, "endpoint="+near.URL+"&origin="+s.URL, 1),
	} {
		t.Run(name, func(t *testing.T) {
			m := servers.MountKept(t, source)
			if !m.GoesOn(t) {
				if strings.Contains(m.LogText(t), "6.9") { // an older kernel, which the log names
					t.Skip("no daemon goes on with the mount of another here")
				}
				t.Fatalf("no daemon goes on\n%s", m.LogText(t))
			}
			m.Compare(t, map[string][]byte{"train.bin": data})
		})
	}
}
