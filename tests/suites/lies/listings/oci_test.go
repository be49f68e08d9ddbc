package listings_test

import (
	"archive/tar"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/oci"
	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// ociListings has a lie in each answer of a registry to the questions what there is.
func ociListings(t testing.TB) map[string]listLie {
	isManifest := func(x *liar.Exchange) bool { return strings.Contains(x.R.URL.Path, "/manifests/") }
	isPing := func(x *liar.Exchange) bool { return x.R.URL.Path == "/v2/" }
	told := func(text string) func(*liar.Exchange, int) bool {
		return always(isManifest, func(x *liar.Exchange) { x.Text(http.StatusOK, text) })
	}
	endless := func(text, again string) func(*liar.Exchange, int) bool {
		return always(isManifest, func(x *liar.Exchange) { x.Text(http.StatusOK, text); x.Forever(strings.Repeat(again, 1000), 0) })
	}
	// archive has a layer that is a tar, in the place of the manifest's.
	archive := func(data []byte, size int) func(*liar.Exchange, int) bool {
		d := oci.Descriptor{MediaType: oci.ImageTar, Digest: oci.DigestOf(data), Size: int64(size)}
		return func(x *liar.Exchange, n int) bool {
			if strings.Contains(x.R.URL.Path, "/blobs/") {
				from, to, _ := blackbox.ParseRange(x.R.Header.Get("Range"))
				y := &liar.Exchange{W: x.W, R: x.R, Data: data, From: min(from, int64(len(data))), To: min(to+1, int64(len(data)))}
				y.Answer(y.Right())
				return true
			}
			return told(liar.OCIManifest(d))(x, n)
		}
	}
	one := oci.Tar(t, oci.Member{Name: "a", Data: make([]byte, 10_000)}, oci.Member{Name: "b", Data: make([]byte, 10_000)})
	var many []oci.Member
	for i := range 2000 {
		many = append(many, oci.Member{Name: fmt.Sprint("links/", i), Type: tar.TypeSymlink, Link: "x"})
	}
	links := oci.Tar(t, many...)
	shard := liar.OCILayer("shard", []byte("data"))
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
		"a size below nothing":    {tell: told(strings.Replace(liar.OCIManifest(shard), `"size":4`, `"size":-4`, 1)), says: "of a size that cannot be"},
		"a size of words":         {tell: told(strings.Replace(liar.OCIManifest(shard), `"size":4`, `"size":"four"`, 1)), says: "cannot be read"},
		"deep JSON":               {tell: told(strings.Repeat("[", 1_000_000)), says: "cannot be read"},
		"no list":                 {tell: told(`{"schemaVersion":2,"layers":7}`), says: "where a list belongs"},
		"no layers":               {tell: told(`{"schemaVersion":2,"layers":[]}`), says: "it has no files"},
		"an old schema":           {tell: told(`{"schemaVersion":1,"fsLayers":[]}`), says: "schema 1"},
		"no manifest":             {tell: told(`{"name":"org/model","tags":[]}`), says: "it is no manifest"},
		"two kinds at once":       {tell: told(strings.TrimSuffix(liar.OCIManifest(shard), "}") + `,"manifests":[` + entry + "]}"), says: "an index and a manifest at once"},
		"another digest":          {tell: told(index + entry + "]}"), says: "has the digest sha256:"},
		"another digest in a header": {tell: always(isManifest, func(x *liar.Exchange) {
			x.W.Header().Set("Docker-Content-Digest", shard.Digest)
			x.Text(http.StatusOK, liar.OCIManifest(shard))
		}), says: "has the digest sha256:"},
		"a web page":             {tell: told("<!DOCTYPE html><html><body/></html>"), says: "cannot be read"},
		"no content":             {tell: always(isManifest, func(x *liar.Exchange) { x.Text(http.StatusNoContent, "") }), says: "204", tried: true},
		"a part":                 {tell: always(isManifest, func(x *liar.Exchange) { x.Text(http.StatusPartialContent, liar.OCIManifest(shard)) }), says: "206", tried: true},
		"in gzip":                {tell: always(isManifest, func(x *liar.Exchange) { x.W.Header().Set("Content-Encoding", "gzip"); x.Text(http.StatusOK, "") }), says: "encoding"},
		"half of it":             {tell: told(liar.OCIManifest(shard)[:40]), says: "cannot be read"},
		"a circle of redirects":  {tell: always(isManifest, func(x *liar.Exchange) { http.Redirect(x.W, x.R, x.R.URL.String(), http.StatusMovedPermanently) }), says: "redirects more than 10 times"},
		"a file of this machine": {tell: always(isManifest, func(x *liar.Exchange) { http.Redirect(x.W, x.R, "file:///etc/passwd", http.StatusFound) }), says: "redirects to no address"},
		"what a terminal obeys": {tell: always(isManifest, func(x *liar.Exchange) {
			x.Text(http.StatusBadRequest, `{"errors":[{"code":"NO","message":"a\u009bb"}]}`)
		}), says: "400 Bad Request: NO: a?b"},
		"a realm of nowhere": {tell: always(isPing, func(x *liar.Exchange) {
			x.W.Header().Set("Www-Authenticate", `Bearer realm="file:///etc/passwd"`)
			x.Text(http.StatusUnauthorized, "")
		}), says: "invalid realm"},
		"a realm of the cloud": {tell: always(isPing, func(x *liar.Exchange) {
			x.W.Header().Set("Www-Authenticate", `Bearer realm="http://169.254.169.254/latest/meta-data"`)
			x.Text(http.StatusUnauthorized, "")
		}), says: "private or link-local"},
		"an endless token": {tell: func(x *liar.Exchange, _ int) bool {
			if x.R.URL.Path == "/v2/token" {
				x.Text(http.StatusOK, `{"token":"`)
				x.Forever(strings.Repeat("t", 1000), 0)
				return true
			}
			x.W.Header().Set("Www-Authenticate", `Bearer realm="http://`+x.R.Host+`/v2/token"`)
			x.Text(http.StatusUnauthorized, "")
			return true
		}, says: "gives no token"},
		"a tar that is cut":           {tell: archive(one[:15_000], 15_000), says: "the archive ends after"},
		"a tar without its last data": {tell: archive(one[:512+10_240+512], 512+10_240+512), says: "the archive ends after"},
		"a layer longer than it is":   {tell: archive(one, len(one)+1<<20), says: "listed as"},
		"a tar of rubbish":            {tell: archive(origintest.Data(100_000, 1), 100_000), says: "cannot be read"},
		"headers without end":         {tell: archive(links, len(links)), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
	}
}

// TestRegistriesOfLies mounts an artifact with layers that cannot be: the mount serves the others, and the log names each.
func TestRegistriesOfLies(t *testing.T) {
	blackbox.NeedFUSE(t)
	data := origintest.Data(1<<16, 1)
	titled := func(title string) oci.Descriptor { return liar.OCILayer(title, []byte("data")) }
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
			l := liar.OCI(t, map[string][]byte{"train.bin": data}, nil, func(x *liar.Exchange) bool {
				if strings.Contains(x.R.URL.Path, "/manifests/") {
					x.Text(http.StatusOK, liar.OCIManifest(lie.layer, liar.OCILayer("train.bin", data)))
					return true
				}
				return false
			})
			m := mount(t, l.Source(), "--cache-dir", suite.NewDir(t), "--cache-segment=1MiB")
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
