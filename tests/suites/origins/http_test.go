package origins_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/httporigin"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

func TestNginxKeepsTheContract(t *testing.T) {
	servers.NeedNginx(t)
	p := sitetest.NewProxy(t, nginx.Socket)
	origintest.Run(t, func(t *testing.T) origintest.Fixture {
		place := nginx.Place(t)
		var date atomic.Int64
		var lastIndex []byte
		put := func(t testing.TB, name string, data []byte) { nginx.Put(t, place, name, data, date.Add(1)) }
		return origintest.Fixture{
			Names: []string{"with space", "ümlaut", "semi;colon", "q?x=1", "hash#1", "plus+and&", "100%", "a%2Fb", "star*(1)'!"},
			Put:   put,
			Remove: func(t testing.TB, name string) {
				must(t, os.Remove(filepath.Join(nginx.Root, place, filepath.FromSlash(name))))
			},
			Open: func(t testing.TB) origintest.Subject {
				index := sitetest.Index(t, filepath.Join(nginx.Root, place))
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
	servers.NeedNginx(t)
	place := nginx.Place(t)
	text := strings.Repeat("compressible ", 10_000)
	nginx.Put(t, place, "shard.txt", []byte(text), 1)
	o, err := httporigin.Open(sitetest.NewProxy(t, nginx.Socket).URL+"/"+place+"/shard.txt", fetch.Options{})
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
	servers.NeedNginx(t)
	files := map[string][]byte{"train.bin": sitetest.Tokens(1 << 20), "deep/a b/c#d?e%2F.bin": sitetest.Tokens(1000), "deep/ü.bin": sitetest.Tokens(1001), "deep/x/y/z.npy": sitetest.Tokens(7)}
	config := strings.Replace(sitetest.NginxConfig, "root root;", "root root;\n    autoindex on;\n    autoindex_format json;", 1)
	listing, err := sitetest.StartNginx(suite.NewDir(t), config)
	must(t, err)
	t.Cleanup(func() { must(t, listing.Stop()) })
	p := sitetest.NewProxy(t, listing.Socket)
	place := listing.Place(t)
	for name, data := range files {
		listing.Put(t, place, name, data, 1)
	}
	m := servers.Mount(t, p.URL+"/"+place+"/", "")
	m.Compare(t, files)
}
