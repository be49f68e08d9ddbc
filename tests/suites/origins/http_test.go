package origins_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/httporigin"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// siteIndex is an index.json of everything below a directory but itself.
func siteIndex(t testing.TB, root string) []byte {
	t.Helper()
	type chunk struct {
		Filename string `json:"filename"`
	}
	chunks := []chunk{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(root, path); err == nil && d.Type().IsRegular() && name != "index.json" {
			chunks = append(chunks, chunk{filepath.ToSlash(name)})
		}
		return err
	}))
	data, err := json.Marshal(map[string]any{"chunks": chunks})
	must(t, err)
	return data
}

func TestNginxKeepsTheContract(t *testing.T) {
	needNginx(t)
	p := newProxy(t, nginx.socket)
	origintest.Run(t, func(t *testing.T) origintest.Fixture {
		place := nginx.place(t)
		var date atomic.Int64
		var lastIndex []byte
		put := func(t testing.TB, name string, data []byte) { nginx.put(t, place, name, data, date.Add(1)) }
		return origintest.Fixture{
			Names: []string{"with space", "ümlaut", "semi;colon", "q?x=1", "hash#1", "plus+and&", "100%", "a%2Fb", "star*(1)'!"},
			Put:   put,
			Remove: func(t testing.TB, name string) {
				must(t, os.Remove(filepath.Join(nginx.root, place, filepath.FromSlash(name))))
			},
			Open: func(t testing.TB) origintest.Subject {
				index := siteIndex(t, filepath.Join(nginx.root, place))
				if !bytes.Equal(index, lastIndex) {
					put(t, "index.json", index)
					lastIndex = index
				}
				o, err := httporigin.Open(p.URL+"/"+place+"/", fetch.Options{})
				must(t, err)
				return o
			},
		}
	})
}

// TestNginxServesBytesAsStored has a server that would compress, which would make ranges of other bytes.
func TestNginxServesBytesAsStored(t *testing.T) {
	needNginx(t)
	place := nginx.place(t)
	text := strings.Repeat("compressible ", 10_000)
	nginx.put(t, place, "shard.txt", []byte(text), 1)
	o, err := httporigin.Open(newProxy(t, nginx.socket).URL+"/"+place+"/shard.txt", fetch.Options{})
	must(t, err)
	defer closeOrigin(t, o)
	l, err := o.List(t.Context())
	must(t, err)
	buf := make([]byte, len(text))
	if _, err := o.ReadAt(t.Context(), l.Objects[0], buf, 0); err != nil || string(buf) != text {
		t.Errorf("other bytes than stored, %v", err)
	}
}

// TestServersThatList mounts directories without an index of hbmfs's kind, which nginx lists itself, as JSON.
func TestServersThatList(t *testing.T) {
	blackbox.NeedFUSE(t)
	needNginx(t)
	files := map[string][]byte{"train.bin": tokens(1 << 20), "deep/a b/c#d?e%2F.bin": tokens(1000), "deep/ü.bin": tokens(1001), "deep/x/y/z.npy": tokens(7)}
	config := strings.Replace(nginxConfig, "root root;", "root root;\n    autoindex on;\n    autoindex_format json;", 1)
	listing, err := startNginx(nginx.cmd.Path, suite.NewDir(t), config)
	must(t, err)
	t.Cleanup(func() { must(t, listing.stop()) })
	p := newProxy(t, listing.socket)
	place := listing.place(t)
	for name, data := range files {
		listing.put(t, place, name, data, 1)
	}
	m := mount(t, p.URL+"/"+place+"/", "")
	m.compare(t, files)
}
