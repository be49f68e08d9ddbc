package lies_test

import (
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// azureBlob is an object of a listing as Azure has it, with other properties in place of the true ones.
func azureBlob(name string, size int, more ...string) string {
	properties := map[string]string{"Content-Length": strconv.Itoa(size), "Etag": fmt.Sprintf("%x-%d", name, size), "Last-Modified": liarDate}
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

const azureOpen = `<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="bucket"><Blobs>`

func azureList(marker string, prefixes []string, blobs ...string) string {
	text := azureOpen + strings.Join(blobs, "")
	for _, dir := range prefixes {
		text += "<BlobPrefix><Name>" + dir + "</Name></BlobPrefix>"
	}
	return text + "</Blobs><NextMarker>" + marker + "</NextMarker></EnumerationResults>"
}

// azurePage lists a directory of the container.
func (l *liar) azurePage(x *exchange) {
	prefix := x.r.URL.Query().Get("prefix")
	var blobs []string
	below := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(l.files)) {
		rest, ok := strings.CutPrefix(name, prefix)
		if dir, _, deep := strings.Cut(rest, "/"); ok && deep {
			below[prefix+dir+"/"] = true
		} else if ok {
			blobs = append(blobs, azureBlob(name, len(l.files[name])))
		}
	}
	x.text(http.StatusOK, azureList("", slices.Sorted(maps.Keys(below)), blobs...))
}

func isAzureList(x *exchange) bool { return x.r.URL.Query().Get("comp") == "list" }

// azureListings has a lie in each answer of Azure to the questions what there is.
func azureListings() map[string]listLie {
	page := func(body string) func(x *exchange) { return func(x *exchange) { x.text(http.StatusOK, body) } }
	endless := func(text, again string) func(x *exchange) {
		return func(x *exchange) { x.text(http.StatusOK, text); x.forever(strings.Repeat(again, 1000), 0) }
	}
	told := func(tell func(x *exchange)) func(*exchange, int) bool { return always(isAzureList, tell) }
	shard := azureBlob("shard", 600_000)
	prefixOf := func(x *exchange) string { return x.r.URL.Query().Get("prefix") }
	return map[string]listLie{
		"endless name":       {tell: told(endless(azureOpen+"<Blob><Name>", "k")), says: "more than 33554432 bytes"},
		"endless blobs":      {tell: told(endless(azureOpen, shard)), says: "more than the 2000 names"},
		"endless prefixes":   {tell: told(endless(azureOpen, "<BlobPrefix/>")), says: "more than the 2000 names"},
		"endless metadata":   {tell: told(endless(azureOpen+"<Blob><Metadata>", "<a>b</a>")), says: "more than 33554432 bytes"},
		"endless elements":   {tell: told(endless(azureOpen, "<Other>b</Other>")), says: "more than 33554432 bytes"},
		"endless space":      {tell: told(endless("", " \n")), says: "more than 33554432 bytes"},
		"deep XML":           {tell: told(endless(azureOpen+"<Blob>", "<a>")), says: "more than 33554432 bytes"},
		"one marker":         {tell: told(page(azureList("again", nil, shard))), says: "the same continuation token"},
		"two markers":        {tell: func(x *exchange, n int) bool { return told(page(azureList("m"+strconv.Itoa(n%2), nil, shard)))(x, n) }, says: "the same continuation token"},
		"pages without name": {tell: func(x *exchange, n int) bool { return told(page(azureList("m"+strconv.Itoa(n), nil)))(x, n) }, says: "does not advance"},
		"pages without end": {tell: func(x *exchange, n int) bool {
			return told(page(azureList("m"+strconv.Itoa(n), nil, azureBlob(fmt.Sprintf("shard-%08d", n), 1))))(x, n)
		}, says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"directories that name each other": {tell: told(func(x *exchange) {
			page(azureList("", []string{map[string]string{"": "a/", "a/": "b/", "b/": "a/"}[prefixOf(x)]}))(x)
		}), says: "lists"},
		"a directory that is itself": {tell: told(func(x *exchange) {
			dir := prefixOf(x)
			if dir == "" {
				dir = "a/"
			}
			page(azureList("", []string{dir}))(x)
		}), says: "as a directory"},
		"a directory in itself": {tell: told(func(x *exchange) { page(azureList("", []string{prefixOf(x) + "a/"}))(x) }), says: "at most 1024"},
		"directories without end": {tell: told(func(x *exchange) {
			page(azureList("", []string{prefixOf(x) + "a/", prefixOf(x) + "b/", prefixOf(x) + "c/"}))(x)
		}), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"names of elsewhere":    {tell: told(func(x *exchange) { page(azureList("", []string{"a/"}, azureBlob("b/x", 1)))(x) }), says: `was asked for names that begin with "a/"`},
		"a name too long":       {tell: told(page(azureList("", nil, azureBlob(strings.Repeat("k", 2000), 1)))), says: "at most 1024"},
		"a name badly encoded":  {tell: told(page(azureOpen + `<Blob><Name Encoded="true">%zz</Name><Properties><Content-Length>1</Content-Length></Properties></Blob></Blobs></EnumerationResults>`)), says: "not as it encodes names"},
		"an ETag too long":      {tell: told(page(azureList("", nil, azureBlob("shard", 1, "Etag", strings.Repeat("1", 2000))))), says: "version"},
		"a size of words":       {tell: told(page(azureList("", nil, azureBlob("shard", 1, "Content-Length", "many")))), says: "with the size"},
		"a size without end":    {tell: told(page(azureList("", nil, azureBlob("shard", 1, "Content-Length", "99999999999999999999")))), says: "with the size"},
		"control characters":    {tell: told(page(azureOpen + "<Blob><Name>a\x01b</Name></Blob></Blobs></EnumerationResults>")), says: "cannot be read", tried: true},
		"a web page":            {tell: told(page("<!DOCTYPE html><html><body/></html>")), says: "is this address a server of Azure Blob Storage?"},
		"no XML":                {tell: told(page(`{"kind":"storage#objects"}`)), says: "cannot be read", tried: true},
		"accepted":              {tell: told(func(x *exchange) { x.text(http.StatusAccepted, "") }), says: "202", tried: true},
		"a part":                {tell: told(func(x *exchange) { x.text(http.StatusPartialContent, azureList("", nil, shard)) }), says: "206", tried: true},
		"in gzip":               {tell: told(func(x *exchange) { x.w.Header().Set("Content-Encoding", "gzip"); page(azureList("", nil, shard))(x) }), says: "encoding"},
		"half of it":            {tell: told(page(azureOpen + shard)), says: "cannot be read", tried: true},
		"a circle of redirects": {tell: told(func(x *exchange) { http.Redirect(x.w, x.r, x.r.URL.String(), http.StatusMovedPermanently) }), says: "301"},
		"what a terminal obeys": {tell: told(func(x *exchange) {
			x.text(http.StatusBadRequest, "<Error><Code>X</Code><Message>a&#x9b;b</Message></Error>")
		}), says: "400 Bad Request, X: a?b"},
	}
}

// TestAzureListingsOfLies mounts a container that lists objects that cannot be: the mount serves the others, and the log names each.
func TestAzureListingsOfLies(t *testing.T) {
	blackbox.NeedFUSE(t)
	data := origintest.Data(1<<16, 1)
	for name, lie := range map[string]struct{ blob, says string }{
		"a negative size":     {azureBlob("z.bin", 0, "Content-Length", "-1"), "less than nothing"},
		"too large a size":    {azureBlob("z.bin", 0, "Content-Length", "9223372036854775807"), "more than a mount shows"},
		"no version":          {azureBlob("z.bin", 1, "Etag", ""), "left out"},
		"a version of spaces": {azureBlob("z.bin", 1, "Etag", "a b"), "left out"},
		"a name that leaves":  {azureBlob("../z.bin", 1), "no path of a file"},
		"a control character": {strings.Replace(azureBlob("z.bin", 1), "<Name>z", `<Name Encoded="true">%01/../z`, 1), "no path of a file"},
		"a name twice":        {azureBlob("train.bin", 5), "listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newAzureLiar(t, map[string][]byte{"train.bin": data}, nil, func(x *exchange) bool {
				if !isAzureList(x) {
					return false
				}
				x.text(http.StatusOK, azureList("", nil, azureBlob("train.bin", len(data)), lie.blob))
				return true
			})
			m := mount(t, l.source(), "", "--cache-dir", suite.NewDir(t), "--cache-segment=1MiB")
			if log := m.LogText(t); !strings.Contains(log, lie.says) || !strings.Contains(log, "left out") {
				t.Errorf("the log does not say %q:\n%s", lie.says, log)
			}
			names, err := mounttest.ListTree(m.Point)
			must(t, err)
			if !slices.Equal(names, []string{".", "train.bin"}) {
				t.Errorf("the mount lists %q", names)
			}
			if name == "a name twice" { // which of the two is left out is not ours to say
				return
			}
			if err := mounttest.CompareFile(m.Path("train.bin"), data); err != nil {
				t.Errorf("%v\nlog:\n%s", err, m.LogText(t))
			}
		})
	}
}
