package origins_test

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
)

// site is an empty dataset at a real server, behind a proxy.
type site struct {
	*proxy
	source  string
	indexed bool // there is an index.json of all
	put     func(t testing.TB, name string, data []byte)
	listed  func(t testing.TB) // what was put can be listed when it returns
}

func newS3Site(t *testing.T) *site {
	needS3(t)
	bucket, p := s3.bucket(t), newProxy(t, s3.socket)
	return &site{
		proxy: p, source: s3Source(p, bucket), listed: func(testing.TB) {},
		put: func(t testing.TB, name string, data []byte) { s3.put(t, bucket, name, data) },
	}
}

func newHTTPSite(t *testing.T) *site {
	needNginx(t)
	place, p := nginx.place(t), newProxy(t, nginx.socket)
	var date atomic.Int64
	s := &site{proxy: p, source: p.URL + "/" + place + "/", indexed: true}
	s.put = func(t testing.TB, name string, data []byte) { nginx.put(t, place, name, data, date.Add(1)) }
	s.listed = func(t testing.TB) { s.put(t, "index.json", siteIndex(t, filepath.Join(nginx.root, place))) }
	return s
}

// onEverySite runs a test on each kind of server, side by side.
func onEverySite(t *testing.T, test func(t *testing.T, s *site)) {
	for name, make := range map[string]func(*testing.T) *site{"s3": newS3Site, "http": newHTTPSite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make(t))
		})
	}
}

// putAll puts files, and an index of them.
func (s *site) putAll(t *testing.T, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		s.put(t, name, data)
	}
	s.listed(t)
}

// goldenFiles are all golden datasets, and one that is larger than a segment of these tests.
func goldenFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	const root = "../../data/testdata"
	must(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	}))
	files["large/train.bin"] = tokens(3 << 20)
	return files
}

// tokens makes n headerless tokens of two bytes, all of GPT-2's vocabulary.
func tokens(n int) []byte {
	p := origintest.Data(2*n, 7)
	for i := 1; i < len(p); i += 2 {
		p[i] %= 0xc0
	}
	return p
}
