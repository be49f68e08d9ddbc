package listings_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

func isAzureList(x *liar.Exchange) bool { return x.R.URL.Query().Get("comp") == "list" }

// azureListings has a lie in each answer of Azure to the questions what there is.
func azureListings() map[string]listLie {
	page := func(body string) func(x *liar.Exchange) {
		return func(x *liar.Exchange) { x.Text(http.StatusOK, body) }
	}
	endless := func(text, again string) func(x *liar.Exchange) {
		return func(x *liar.Exchange) { x.Text(http.StatusOK, text); x.Forever(strings.Repeat(again, 1000), 0) }
	}
	told := func(tell func(x *liar.Exchange)) func(*liar.Exchange, int) bool { return always(isAzureList, tell) }
	shard := liar.AzureBlob("shard", 600_000)
	prefixOf := func(x *liar.Exchange) string { return x.R.URL.Query().Get("prefix") }
	return map[string]listLie{
		"endless name":       {tell: told(endless(liar.AzureOpen+"<Blob><Name>", "k")), says: "more than 10485760 bytes"},
		"endless blobs":      {tell: told(endless(liar.AzureOpen, shard)), says: "more than 10485760 bytes"},
		"too many blobs":     {tell: told(page(liar.AzureOpen + strings.Repeat(shard, 1001))), says: "more than the 1000 names"},
		"too many prefixes":  {tell: told(page(liar.AzureOpen + strings.Repeat("<BlobPrefix/>", 1001))), says: "more than the 1000 names"},
		"endless metadata":   {tell: told(endless(liar.AzureOpen+"<Blob><Metadata>", "<a>b</a>")), says: "more than 10485760 bytes"},
		"endless elements":   {tell: told(endless(liar.AzureOpen, "<Other>b</Other>")), says: "more than 10485760 bytes"},
		"endless space":      {tell: told(endless("", " \n")), says: "more than 10485760 bytes"},
		"deep XML":           {tell: told(page(liar.AzureOpen + "<Blob>" + strings.Repeat("<a>", 1000))), says: "deeper than any listing"},
		"deep XML outside":   {tell: told(page(strings.Repeat("<EnumerationResults>", 1000))), says: "deeper than any listing"},
		"a long element":     {tell: told(page(liar.AzureOpen + "<Blob" + strings.Repeat(` a=""`, 1<<20) + "/>")), says: "an element of the server's listing has more than 1048576 bytes"},
		"endless attributes": {tell: told(endless(liar.AzureOpen+"<Blob", ` a=""`)), says: "more than 10485760 bytes"},
		"one marker":         {tell: told(page(liar.AzureList("again", nil, shard))), says: "the same continuation token"},
		"two markers": {tell: func(x *liar.Exchange, n int) bool {
			return told(page(liar.AzureList("m"+strconv.Itoa(n%2), nil, shard)))(x, n)
		}, says: "the same continuation token"},
		"pages without name": {tell: func(x *liar.Exchange, n int) bool { return told(page(liar.AzureList("m"+strconv.Itoa(n), nil)))(x, n) }, says: "does not advance"},
		"pages without end": {tell: func(x *liar.Exchange, n int) bool {
			return told(page(liar.AzureList("m"+strconv.Itoa(n), nil, liar.AzureBlob(fmt.Sprintf("shard-%08d", n), 1))))(x, n)
		}, says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"directories that name each other": {tell: told(func(x *liar.Exchange) {
			page(liar.AzureList("", []string{map[string]string{"": "a/", "a/": "b/", "b/": "a/"}[prefixOf(x)]}))(x)
		}), says: "lists"},
		"a directory that is itself": {tell: told(func(x *liar.Exchange) {
			dir := prefixOf(x)
			if dir == "" {
				dir = "a/"
			}
			page(liar.AzureList("", []string{dir}))(x)
		}), says: "as a directory"},
		"a directory in itself": {tell: told(func(x *liar.Exchange) { page(liar.AzureList("", []string{prefixOf(x) + "a/"}))(x) }), says: "at most 1024"},
		"directories without end": {tell: told(func(x *liar.Exchange) {
			page(liar.AzureList("", []string{prefixOf(x) + "a/", prefixOf(x) + "b/", prefixOf(x) + "c/"}))(x)
		}), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"names of elsewhere":   {tell: told(func(x *liar.Exchange) { page(liar.AzureList("", []string{"a/"}, liar.AzureBlob("b/x", 1)))(x) }), says: `was asked for names that begin with "a/"`},
		"a name too long":      {tell: told(page(liar.AzureList("", nil, liar.AzureBlob(strings.Repeat("k", 2000), 1)))), says: "at most 1024"},
		"a name badly encoded": {tell: told(page(liar.AzureOpen + `<Blob><Name Encoded="true">%zz</Name><Properties><Content-Length>1</Content-Length></Properties></Blob></Blobs></EnumerationResults>`)), says: "not as it encodes names"},
		"an ETag too long":     {tell: told(page(liar.AzureList("", nil, liar.AzureBlob("shard", 1, "Etag", strings.Repeat("1", 2000))))), says: "version"},
		"a size of words":      {tell: told(page(liar.AzureList("", nil, liar.AzureBlob("shard", 1, "Content-Length", "many")))), says: "with the size"},
		"a size without end":   {tell: told(page(liar.AzureList("", nil, liar.AzureBlob("shard", 1, "Content-Length", "99999999999999999999")))), says: "with the size"},
		"control characters":   {tell: told(page(liar.AzureOpen + "<Blob><Name>a\x01b</Name></Blob></Blobs></EnumerationResults>")), says: "cannot be read", tried: true},
		"a web page":           {tell: told(page("<!DOCTYPE html><html><body/></html>")), says: "is this address a server of Azure Blob Storage?"},
		"no XML":               {tell: told(page(`{"kind":"storage#objects"}`)), says: "cannot be read", tried: true},
		"accepted":             {tell: told(func(x *liar.Exchange) { x.Text(http.StatusAccepted, "") }), says: "202", tried: true},
		"a part":               {tell: told(func(x *liar.Exchange) { x.Text(http.StatusPartialContent, liar.AzureList("", nil, shard)) }), says: "206", tried: true},
		"in gzip": {tell: told(func(x *liar.Exchange) {
			x.W.Header().Set("Content-Encoding", "gzip")
			page(liar.AzureList("", nil, shard))(x)
		}), says: "encoding"},
		"half of it":            {tell: told(page(liar.AzureOpen + shard)), says: "cannot be read", tried: true},
		"a circle of redirects": {tell: told(func(x *liar.Exchange) { http.Redirect(x.W, x.R, x.R.URL.String(), http.StatusMovedPermanently) }), says: "301"},
		"what a terminal obeys": {tell: told(func(x *liar.Exchange) {
			x.Text(http.StatusBadRequest, "<Error><Code>X</Code><Message>a&#x9b;b</Message></Error>")
		}), says: "400 Bad Request, X: a?b"},
	}
}

// TestAzureListingsOfLies mounts a container that lists objects that cannot be: the mount serves the others, and the log names each.
func TestAzureListingsOfLies(t *testing.T) {
	blackbox.NeedFUSE(t)
	data := origintest.Data(1<<16, 1)
	for name, lie := range map[string]struct{ blob, says string }{
		"a negative size":     {liar.AzureBlob("z.bin", 0, "Content-Length", "-1"), "less than nothing"},
		"too large a size":    {liar.AzureBlob("z.bin", 0, "Content-Length", "9223372036854775807"), "more than a mount shows"},
		"no version":          {liar.AzureBlob("z.bin", 1, "Etag", ""), "left out"},
		"a version of spaces": {liar.AzureBlob("z.bin", 1, "Etag", "a b"), "left out"},
		"a name that leaves":  {liar.AzureBlob("../z.bin", 1), "no path of a file"},
		"a control character": {strings.Replace(liar.AzureBlob("z.bin", 1), "<Name>z", `<Name Encoded="true">%01/../z`, 1), "no path of a file"},
		"a name twice":        {liar.AzureBlob("train.bin", 5), "listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := liar.Azure(t, map[string][]byte{"train.bin": data}, nil, func(x *liar.Exchange) bool {
				if !isAzureList(x) {
					return false
				}
				x.Text(http.StatusOK, liar.AzureList("", nil, liar.AzureBlob("train.bin", len(data)), lie.blob))
				return true
			})
			m := mount(t, l.Source(), "--cache-dir", suite.NewDir(t), "--cache-segment=1MiB")
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
