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

func isGSList(x *liar.Exchange) bool { return x.Name == "" && x.R.URL.Query().Has("delimiter") }

// gsListings has a lie in each answer of Google's API to the questions what there is.
func gsListings() map[string]listLie {
	page := func(body string) func(x *liar.Exchange) {
		return func(x *liar.Exchange) { x.JSON(http.StatusOK, body) }
	}
	endless := func(text, again string) func(x *liar.Exchange) {
		return func(x *liar.Exchange) { x.JSON(http.StatusOK, text); x.Forever(strings.Repeat(again, 1000), 0) }
	}
	told := func(tell func(x *liar.Exchange)) func(*liar.Exchange, int) bool { return always(isGSList, tell) }
	shard := liar.GSItem("shard", 600_000)
	open := `{"kind":"storage#objects","items":[`
	return map[string]listLie{
		"endless name":       {tell: told(endless(open+`{"name":"`, "k")), says: "more than 16777216 bytes"},
		"endless items":      {tell: told(endless(open+shard, ","+shard)), says: "more than 16777216 bytes"},
		"endless space":      {tell: told(endless("", " \n")), says: "more than 16777216 bytes"},
		"a million items":    {tell: told(page(open + "{}" + strings.Repeat(",{}", 1_000_000) + "]}")), says: "more than the 1000 names"},
		"a million prefixes": {tell: told(page(`{"kind":"storage#objects","prefixes":["a/"` + strings.Repeat(`,"a/"`, 1_000_000) + "]}")), says: "more than the 1000 names"},
		"deep JSON":          {tell: told(page(strings.Repeat("[", 1_000_000))), says: "cannot be read", tried: true},
		"no list":            {tell: told(page(`{"kind":"storage#objects","items":7}`)), says: "where a list belongs"},
		"one token for ever": {tell: told(page(liar.GSList("again", nil, shard))), says: "the same continuation token"},
		"two tokens in turn": {tell: func(x *liar.Exchange, n int) bool {
			return told(page(liar.GSList("token"+strconv.Itoa(n%2), nil, shard)))(x, n)
		}, says: "the same continuation token"},
		"pages without names": {tell: func(x *liar.Exchange, n int) bool { return told(page(liar.GSList("token"+strconv.Itoa(n), nil)))(x, n) }, says: "does not advance"},
		"pages without end": {tell: func(x *liar.Exchange, n int) bool {
			return told(page(liar.GSList("token"+strconv.Itoa(n), nil, liar.GSItem(fmt.Sprintf("shard-%08d", n), 1))))(x, n)
		}, says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"directories that name each other": {tell: told(func(x *liar.Exchange) {
			dir := map[string]string{"": "a/", "a/": "b/", "b/": "a/"}[x.R.URL.Query().Get("prefix")]
			page(liar.GSList("", []string{dir}))(x)
		}), says: "lists"},
		"a directory that is itself": {tell: told(func(x *liar.Exchange) {
			dir := x.R.URL.Query().Get("prefix")
			if dir == "" {
				dir = "a/"
			}
			page(liar.GSList("", []string{dir}))(x)
		}), says: "as a directory"},
		"a directory in itself without end": {tell: told(func(x *liar.Exchange) { page(liar.GSList("", []string{x.R.URL.Query().Get("prefix") + "a/"}))(x) }), says: "at most 1024"},
		"directories without end": {tell: told(func(x *liar.Exchange) {
			prefix := x.R.URL.Query().Get("prefix")
			page(liar.GSList("", []string{prefix + "a/", prefix + "b/", prefix + "c/"}))(x)
		}), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"names of elsewhere":     {tell: told(func(x *liar.Exchange) { page(liar.GSList("", []string{"a/"}, liar.GSItem("b/x", 1)))(x) }), says: `was asked for names that begin with "a/"`},
		"a name too long":        {tell: told(page(liar.GSList("", nil, liar.GSItem(strings.Repeat("k", 2000), 1)))), says: "at most 1024"},
		"a generation too long":  {tell: told(page(liar.GSList("", nil, liar.GSItem("shard", 1, "generation", strings.Repeat("1", 2000))))), says: "version"},
		"no generation's digits": {tell: told(page(liar.GSList("", nil, liar.GSItem("shard", 1, "generation", "1&alt=x")))), says: "with the generation"},
		"a size of words":        {tell: told(page(liar.GSList("", nil, liar.GSItem("shard", 1, "size", "many")))), says: "with the size"},
		"a size without end":     {tell: told(page(liar.GSList("", nil, liar.GSItem("shard", 1, "size", "99999999999999999999")))), says: "with the size"},
		"a web page":             {tell: told(page("<!DOCTYPE html><html><body/></html>")), says: "cannot be read", tried: true},
		"another document":       {tell: told(page(`{"kind":"storage#buckets"}`)), says: "is this address a server of Google Cloud Storage?"},
		"accepted":               {tell: told(func(x *liar.Exchange) { x.JSON(http.StatusAccepted, "{}") }), says: "202", tried: true},
		"no content":             {tell: told(func(x *liar.Exchange) { x.JSON(http.StatusNoContent, "") }), says: "204", tried: true},
		"a part":                 {tell: told(func(x *liar.Exchange) { x.JSON(http.StatusPartialContent, liar.GSList("", nil, shard)) }), says: "206", tried: true},
		"in gzip": {tell: told(func(x *liar.Exchange) {
			x.W.Header().Set("Content-Encoding", "gzip")
			page(liar.GSList("", nil, shard))(x)
		}), says: "encoding"},
		"half of it":            {tell: told(page(open + shard)), says: "unexpected end of JSON", tried: true},
		"a circle of redirects": {tell: told(func(x *liar.Exchange) { http.Redirect(x.W, x.R, x.R.URL.String(), http.StatusMovedPermanently) }), says: "301"},
		"what a terminal obeys": {tell: told(func(x *liar.Exchange) {
			x.JSON(http.StatusBadRequest, `{"error":{"code":400,"message":"a\u009bb"}}`)
		}), says: "400 Bad Request: a?b"},
	}
}

// TestGSListingsOfLies mounts a bucket of Google's that lists objects that cannot be: the mount serves the others, and the log names each.
func TestGSListingsOfLies(t *testing.T) {
	blackbox.NeedFUSE(t)
	data := origintest.Data(1<<16, 1)
	for name, lie := range map[string]struct{ item, says string }{
		"a negative size":    {liar.GSItem("z.bin", 0, "size", "-1"), "less than nothing"},
		"too large a size":   {liar.GSItem("z.bin", 0, "size", "9223372036854775807"), "more than a mount shows"},
		"no version":         {liar.GSItem("z.bin", 1, "generation", ""), "left out"},
		"a name that leaves": {liar.GSItem("../z.bin", 1), "no path of a file"},
		"a name twice":       {liar.GSItem("train.bin", 5), "listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := liar.GS(t, map[string][]byte{"train.bin": data}, nil, func(x *liar.Exchange) bool {
				if !isGSList(x) {
					return false
				}
				x.JSON(http.StatusOK, liar.GSList("", nil, liar.GSItem("train.bin", len(data)), lie.item))
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
