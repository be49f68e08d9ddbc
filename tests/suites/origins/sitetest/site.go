package sitetest

import (
	"encoding/json"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Site is an empty dataset at a real server, behind a proxy.
type Site struct {
	*Proxy
	Source  string
	Indexed bool // there is an index.json of all
	Put     func(t testing.TB, name string, data []byte)
	Listed  func(t testing.TB) // what was put can be listed when it returns
}

// S3Site makes an empty bucket.
func (s *Servers) S3Site(t *testing.T) *Site {
	t.Helper()
	s.NeedS3(t)
	bucket, p := s.S3.Bucket(t), NewProxy(t, s.S3.Socket)
	return &Site{
		Proxy: p, Source: S3Source(p, bucket), Listed: func(testing.TB) {},
		Put: func(t testing.TB, name string, data []byte) { t.Helper(); s.S3.Put(t, bucket, name, data) },
	}
}

// HTTPSite makes an empty directory of a web server.
func (s *Servers) HTTPSite(t *testing.T) *Site {
	t.Helper()
	s.NeedNginx(t)
	place, p := s.Nginx.Place(t), NewProxy(t, s.Nginx.Socket)
	var date atomic.Int64
	site := &Site{Proxy: p, Source: p.URL + "/" + place + "/", Indexed: true}
	site.Put = func(t testing.TB, name string, data []byte) {
		t.Helper()
		s.Nginx.Put(t, place, name, data, date.Add(1))
	}
	site.Listed = func(t testing.TB) {
		t.Helper()
		site.Put(t, "index.json", Index(t, filepath.Join(s.Nginx.Root, place)))
	}
	return site
}

// OnEvery runs a test on each kind of server, side by side.
func (s *Servers) OnEvery(t *testing.T, test func(t *testing.T, s *Site)) {
	t.Helper()
	for name, make := range map[string]func(*testing.T) *Site{"s3": s.S3Site, "http": s.HTTPSite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make(t))
		})
	}
}

// PutAll puts files, and an index of them.
func (s *Site) PutAll(t *testing.T, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		s.Put(t, name, data)
	}
	s.Listed(t)
}

// Tokens makes n headerless tokens of two bytes, all of GPT-2's vocabulary.
func Tokens(n int) []byte {
	p := origintest.Data(2*n, 7)
	for i := 1; i < len(p); i += 2 {
		p[i] %= 0xc0
	}
	return p
}

// Index is an index.json of everything below a directory but itself.
func Index(t testing.TB, root string) []byte {
	t.Helper()
	type chunk struct {
		Filename string `json:"filename"`
	}
	chunks := []chunk{}
	blackbox.Must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(root, path); err == nil && d.Type().IsRegular() && name != "index.json" {
			chunks = append(chunks, chunk{filepath.ToSlash(name)})
		}
		return err
	}))
	data, err := json.Marshal(map[string]any{"chunks": chunks})
	blackbox.Must(t, err)
	return data
}

// S3Source is the source of a bucket behind a proxy, or of a place in it.
func S3Source(p *Proxy, path string) string { return "s3://" + path + "?endpoint=" + p.URL }
