package liar

import (
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Azure makes a container of Azure.
func Azure(t testing.TB, files map[string][]byte, read, list func(x *Exchange) bool) *Liar {
	return (&Liar{Files: maps.Clone(files), azure: true, read: read, list: list}).start(t)
}

// AzureBlob is an object of a listing as Azure has it, with other properties in place of the true ones.
func AzureBlob(name string, size int, more ...string) string {
	properties := map[string]string{"Content-Length": strconv.Itoa(size), "Etag": fmt.Sprintf("%x-%d", name, size), "Last-Modified": date}
	for i := 0; i < len(more); i += 2 {
		properties[more[i]] = more[i+1]
	}
	var text strings.Builder
	text.WriteString("<Blob><Name>")
	_ = xml.EscapeText(&text, []byte(name)) // a Builder takes all
	text.WriteString("</Name><Properties>")
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&text, "<%s>%s</%[1]s>", key, properties[key])
	}
	text.WriteString("</Properties></Blob>")
	return text.String()
}

// AzureOpen is how a page of a listing begins.
const AzureOpen = `<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="bucket"><Blobs>`

// AzureList is a page of a listing, after which one follows where there is a marker.
func AzureList(marker string, prefixes []string, blobs ...string) string {
	text := AzureOpen + strings.Join(blobs, "")
	for _, dir := range prefixes {
		text += "<BlobPrefix><Name>" + dir + "</Name></BlobPrefix>"
	}
	return text + "</Blobs><NextMarker>" + marker + "</NextMarker></EnumerationResults>"
}

// azurePage lists a directory of the container.
func (l *Liar) azurePage(x *Exchange) {
	prefix := x.R.URL.Query().Get("prefix")
	var blobs []string
	below := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(l.Files)) {
		rest, ok := strings.CutPrefix(name, prefix)
		if dir, _, deep := strings.Cut(rest, "/"); ok && deep {
			below[prefix+dir+"/"] = true
		} else if ok {
			blobs = append(blobs, AzureBlob(name, len(l.Files[name])))
		}
	}
	x.Text(http.StatusOK, AzureList("", slices.Sorted(maps.Keys(below)), blobs...))
}
