package liar

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox/oci"
)

// OCIManifest is a manifest of layers.
func OCIManifest(layers ...oci.Descriptor) string {
	text, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": oci.Manifest, "layers": layers})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// OCILayer is a layer that is a file.
func OCILayer(name string, data []byte) oci.Descriptor {
	return oci.Descriptor{MediaType: oci.ModelRaw, Digest: oci.DigestOf(data), Size: int64(len(data)), Annotations: map[string]string{oci.FilePath: name}}
}

// OCI makes a liar of an OCI registry. The registry is at 127.0.0.1, and its storage, which has all blobs and tells the lies about bytes, at
// another name of the same server. Lies about listings are the registry's.
func OCI(t testing.TB, files map[string][]byte, read, list func(x *Exchange) bool) *Liar {
	l := &Liar{Files: maps.Clone(files), s3: true, oci: true, read: read}
	names := map[string]string{}
	var layers []oci.Descriptor
	for _, name := range slices.Sorted(maps.Keys(files)) {
		names[oci.DigestOf(files[name])] = name
		layers = append(layers, OCILayer(name, files[name]))
	}
	l.hub = func(w http.ResponseWriter, r *http.Request) bool {
		x := &Exchange{W: w, R: r}
		path, mine := strings.CutPrefix(r.URL.Path, "/v2/")
		digest, isBlob := strings.CutPrefix(path, "org/model/blobs/")
		switch {
		case !mine:
		case !l.Honest.Load() && list != nil && list(x):
		case isBlob:
			http.Redirect(w, r, strings.Replace(l.URL, "127.0.0.1", "localhost", 1)+"/"+Bucket+"/"+names[digest], http.StatusTemporaryRedirect)
		case path == "":
			x.Text(http.StatusOK, "{}")
		default:
			x.Text(http.StatusOK, OCIManifest(layers...))
		}
		return mine
	}
	return l.start(t)
}
