package lies_test

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/oci"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// ociManifest is a manifest of layers.
func ociManifest(layers ...oci.Descriptor) string {
	text, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": oci.Manifest, "layers": layers})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func ociLayer(name string, data []byte) oci.Descriptor {
	return oci.Descriptor{MediaType: oci.ModelRaw, Digest: oci.DigestOf(data), Size: int64(len(data)), Annotations: map[string]string{oci.FilePath: name}}
}

// newOCILiar makes a liar of an OCI registry. The registry is at 127.0.0.1, and its storage, which has all blobs and tells the lies about bytes, at
// another name of the same server. Lies about listings are the registry's.
func newOCILiar(t testing.TB, files map[string][]byte, read, list func(x *exchange) bool) *liar {
	l := &liar{files: maps.Clone(files), s3: true, oci: true, read: read}
	names := map[string]string{}
	var layers []oci.Descriptor
	for _, name := range slices.Sorted(maps.Keys(files)) {
		names[oci.DigestOf(files[name])] = name
		layers = append(layers, ociLayer(name, files[name]))
	}
	l.hub = func(w http.ResponseWriter, r *http.Request) bool {
		x := &exchange{w: w, r: r}
		path, mine := strings.CutPrefix(r.URL.Path, "/v2/")
		digest, isBlob := strings.CutPrefix(path, "org/model/blobs/")
		switch {
		case !mine:
		case !l.honest.Load() && list != nil && list(x):
		case isBlob:
			http.Redirect(w, r, strings.Replace(l.URL, "127.0.0.1", "localhost", 1)+"/"+liarBucket+"/"+names[digest], http.StatusTemporaryRedirect)
		case path == "":
			x.text(http.StatusOK, "{}")
		default:
			x.text(http.StatusOK, ociManifest(layers...))
		}
		return mine
	}
	return l.start(t)
}

// TestLiesAboutBytesOfARegistry is TestLiesAboutBytes for the storage of a registry, which is as that of a Hub.
func TestLiesAboutBytesOfARegistry(t *testing.T) {
	blackbox.NeedFUSE(t)
	for kind, patience := range map[string]time.Duration{"tried": hasty, "once": patient} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			told := hubLies()
			maps.DeleteFunc(told, func(_ string, l lie) bool { return (l.once || !errors.Is(l.want, syscall.EIO)) != (kind == "once") })
			tellAll(t, newOCILiar, told, patience)
		})
	}
}

// ociListings has a lie in each answer of a registry to the questions what there is.
func ociListings(t testing.TB) map[string]listLie {
	isManifest := func(x *exchange) bool { return strings.Contains(x.r.URL.Path, "/manifests/") }
	isPing := func(x *exchange) bool { return x.r.URL.Path == "/v2/" }
	told := func(text string) func(*exchange, int) bool {
		return always(isManifest, func(x *exchange) { x.text(http.StatusOK, text) })
	}
	endless := func(text, again string) func(*exchange, int) bool {
		return always(isManifest, func(x *exchange) { x.text(http.StatusOK, text); x.forever(strings.Repeat(again, 1000), 0) })
	}
	// archive has a layer that is a tar, in the place of the manifest's.
	archive := func(data []byte, size int) func(*exchange, int) bool {
		d := oci.Descriptor{MediaType: oci.ImageTar, Digest: oci.DigestOf(data), Size: int64(size)}
		return func(x *exchange, n int) bool {
			if strings.Contains(x.r.URL.Path, "/blobs/") {
				from, to, _ := blackbox.ParseRange(x.r.Header.Get("Range"))
				y := &exchange{w: x.w, r: x.r, data: data, from: min(from, int64(len(data))), to: min(to+1, int64(len(data))), version: "ETag"}
				y.answer(y.right())
				return true
			}
			return told(ociManifest(d))(x, n)
		}
	}
	one := oci.Tar(t, oci.Member{Name: "a", Data: make([]byte, 10_000)}, oci.Member{Name: "b", Data: make([]byte, 10_000)})
	var many []oci.Member
	for i := range 2000 {
		many = append(many, oci.Member{Name: fmt.Sprint("links/", i), Type: tar.TypeSymlink, Link: "x"})
	}
	links := oci.Tar(t, many...)
	shard := ociLayer("shard", []byte("data"))
	const index = `{"schemaVersion":2,"manifests":[`
	entry := fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":1}`, oci.Index, shard.Digest)
	return map[string]listLie{
		"endless name":            {tell: endless(`{"schemaVersion":2,"layers":[{"mediaType":"`, "k"), says: "more than 4194304 bytes"},
		"endless layers":          {tell: endless(`{"schemaVersion":2,"layers":[{}`, ",{}"), says: "more than 4194304 bytes"},
		"endless space":           {tell: endless("", " \n"), says: "more than 4194304 bytes"},
		"a million layers":        {tell: told(`{"schemaVersion":2,"layers":[` + strings.Repeat(entry[:len(entry)-1]+"},", 20_000) + entry + "]}"), says: "more than 10000 layers"},
		"layers without a digest": {tell: told(`{"schemaVersion":2,"layers":[{}` + strings.Repeat(",{}", 1_000_000) + "]}"), says: "without a digest"},
		"a digest that is none":   {tell: told(`{"schemaVersion":2,"layers":[{"digest":"sha256:../../etc/passwd","size":1}]}`), says: "cannot be read"},
		"another hash":            {tell: told(`{"schemaVersion":2,"layers":[{"digest":"md5:d41d8cd98f00b204e9800998ecf8427e","size":1}]}`), says: "cannot be read"},
		"a size below nothing":    {tell: told(strings.Replace(ociManifest(shard), `"size":4`, `"size":-4`, 1)), says: "of a size that cannot be"},
		"a size of words":         {tell: told(strings.Replace(ociManifest(shard), `"size":4`, `"size":"four"`, 1)), says: "cannot be read"},
		"deep JSON":               {tell: told(strings.Repeat("[", 1_000_000)), says: "cannot be read"},
		"no list":                 {tell: told(`{"schemaVersion":2,"layers":7}`), says: "where a list belongs"},
		"no layers":               {tell: told(`{"schemaVersion":2,"layers":[]}`), says: "it has no files"},
		"an old schema":           {tell: told(`{"schemaVersion":1,"fsLayers":[]}`), says: "schema 1"},
		"no manifest":             {tell: told(`{"name":"org/model","tags":[]}`), says: "it is no manifest"},
		"two kinds at once":       {tell: told(strings.TrimSuffix(ociManifest(shard), "}") + `,"manifests":[` + entry + "]}"), says: "an index and a manifest at once"},
		"another digest":          {tell: told(index + entry + "]}"), says: "has the digest sha256:"},
		"another digest in a header": {tell: always(isManifest, func(x *exchange) {
			x.w.Header().Set("Docker-Content-Digest", shard.Digest)
			x.text(http.StatusOK, ociManifest(shard))
		}), says: "has the digest sha256:"},
		"a web page":             {tell: told("<!DOCTYPE html><html><body/></html>"), says: "cannot be read"},
		"no content":             {tell: always(isManifest, func(x *exchange) { x.text(http.StatusNoContent, "") }), says: "204", tried: true},
		"a part":                 {tell: always(isManifest, func(x *exchange) { x.text(http.StatusPartialContent, ociManifest(shard)) }), says: "206", tried: true},
		"in gzip":                {tell: always(isManifest, func(x *exchange) { x.w.Header().Set("Content-Encoding", "gzip"); x.text(http.StatusOK, "") }), says: "encoding"},
		"half of it":             {tell: told(ociManifest(shard)[:40]), says: "cannot be read"},
		"a circle of redirects":  {tell: always(isManifest, func(x *exchange) { http.Redirect(x.w, x.r, x.r.URL.String(), http.StatusMovedPermanently) }), says: "redirects more than 10 times"},
		"a file of this machine": {tell: always(isManifest, func(x *exchange) { http.Redirect(x.w, x.r, "file:///etc/passwd", http.StatusFound) }), says: "redirects to no address"},
		"what a terminal obeys": {tell: always(isManifest, func(x *exchange) {
			x.text(http.StatusBadRequest, `{"errors":[{"code":"NO","message":"a\u009bb"}]}`)
		}), says: "400 Bad Request: NO: a?b"},
		"a realm of nowhere": {tell: always(isPing, func(x *exchange) {
			x.w.Header().Set("Www-Authenticate", `Bearer realm="file:///etc/passwd"`)
			x.text(http.StatusUnauthorized, "")
		}), says: "invalid realm"},
		"a realm of the cloud": {tell: always(isPing, func(x *exchange) {
			x.w.Header().Set("Www-Authenticate", `Bearer realm="http://169.254.169.254/latest/meta-data"`)
			x.text(http.StatusUnauthorized, "")
		}), says: "private or link-local"},
		"an endless token": {tell: func(x *exchange, _ int) bool {
			if x.r.URL.Path == "/v2/token" {
				x.text(http.StatusOK, `{"token":"`)
				x.forever(strings.Repeat("t", 1000), 0)
				return true
			}
			x.w.Header().Set("Www-Authenticate", `Bearer realm="http://`+x.r.Host+`/v2/token"`)
			x.text(http.StatusUnauthorized, "")
			return true
		}, says: "gives no token"},
		"a tar that is cut":           {tell: archive(one[:15_000], 15_000), says: "the layer ends after"},
		"a tar without its last data": {tell: archive(one[:512+10_240+512], 512+10_240+512), says: "the layer ends after"},
		"a layer longer than it is":   {tell: archive(one, len(one)+1<<20), says: "listed as"},
		"a tar of rubbish":            {tell: archive(origintest.Data(100_000, 1), 100_000), says: "cannot be read"},
		"headers without end":         {tell: archive(links, len(links)), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
	}
}

// TestLiesAboutListingsOfARegistry is TestLiesAboutListings for a registry.
func TestLiesAboutListingsOfARegistry(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	turns := make(chan struct{}, 4)
	for what, lie := range ociListings(t) {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			var asked atomic.Int64
			files := map[string][]byte{"shard": origintest.Data(600_000, 1)}
			l := newOCILiar(t, files, nil, func(x *exchange) bool { return lie.tell(x, int(asked.Add(1))) })
			flags := append([]string{"--cache-dir", suite.NewDir(t)}, lie.flags...)
			hasty := flags
			if lie.tried {
				hasty = append([]string{"--patience", "5s"}, flags...)
			}
			wantRefused(t, l, lie, hasty)
			l.honest.Store(true)
			m := mount(t, l.source(), "", flags...)
			if err := readThrough(m.Path("shard"), files["shard"]); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRegistriesOfLies mounts an artifact with layers that cannot be: the mount serves the others, and the log names each.
func TestRegistriesOfLies(t *testing.T) {
	blackbox.NeedFUSE(t)
	data := origintest.Data(1<<16, 1)
	titled := func(title string) oci.Descriptor { return ociLayer(title, []byte("data")) }
	large := titled("large")
	large.Size = 1 << 62
	for name, lie := range map[string]struct {
		layer oci.Descriptor
		says  string
	}{
		"a title that leaves":           {titled("../z.bin"), "leaves its directory"},
		"a title that leaves inside":    {titled("a/../../z.bin"), "leaves its directory"},
		"a title of nothing":            {titled("./"), "the name is empty"},
		"a title that a terminal obeys": {titled("a\x1b[2Jb"), "control characters"},
		"a title as directory":          {titled("train.bin/z"), "the same title, or one below it"},
		"a title twice":                 {titled("train.bin"), "the same title"},
		"a long title":                  {titled(strings.Repeat("n", 1000)), "no path of a file"},
		"a title of the mount's own":    {titled(".hbmfs/status"), "a mount has its own files"},
		"too large a size":              {large, "more than a mount shows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newOCILiar(t, map[string][]byte{"train.bin": data}, nil, func(x *exchange) bool {
				if strings.Contains(x.r.URL.Path, "/manifests/") {
					x.text(http.StatusOK, ociManifest(lie.layer, ociLayer("train.bin", data)))
					return true
				}
				return false
			})
			m := mount(t, l.source(), "", "--cache-dir", suite.NewDir(t), "--cache-segment=1MiB")
			if log := m.LogText(t); !strings.Contains(log, lie.says) || !strings.Contains(log, "left out") || strings.Contains(log, "\x1b") {
				t.Errorf("the log does not say %q:\n%s", lie.says, log)
			}
			names, err := mounttest.ListTree(m.Point)
			must(t, err)
			if !slices.Equal(names, []string{".", "train.bin"}) {
				t.Errorf("the mount lists %q", names)
			}
			if err := mounttest.CompareFile(m.Path("train.bin"), data); err != nil {
				t.Errorf("%v\nlog:\n%s", err, m.LogText(t))
			}
		})
	}
}
