package listings_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
)

// hubListings has a lie in each answer of a Hub to the questions what there is.
func hubListings() map[string]listLie {
	isTree := func(x *liar.Exchange) bool { return strings.Contains(x.R.URL.Path, "/tree/") }
	isRevision := func(x *liar.Exchange) bool { return strings.Contains(x.R.URL.Path, "/revision/") }
	hash := strings.Repeat("a", 64)
	page := func(entries, cursor string) func(x *liar.Exchange) {
		return func(x *liar.Exchange) {
			if cursor != "" {
				x.W.Header().Set("Link", `<http://elsewhere/api?cursor=`+cursor+`>; rel="next"`)
			}
			x.Text(http.StatusOK, "["+entries+"]")
		}
	}
	paged := func(entries, cursor func(n int) string) func(*liar.Exchange, int) bool {
		return func(x *liar.Exchange, n int) bool { return always(isTree, page(entries(n), cursor(n)))(x, n) }
	}
	text := func(text string) func(int) string { return func(int) string { return text } }
	number := func(n int) string { return strconv.Itoa(n) }
	file := liar.HubEntry("shard", 600_000, hash)
	return map[string]listLie{
		"endless name":       {tell: always(isTree, func(x *liar.Exchange) { x.Text(http.StatusOK, `[{"path": "`); x.Forever("kkkkkkkkkk", 0) }), says: "more than 8388608 bytes"},
		"endless files":      {tell: always(isTree, func(x *liar.Exchange) { x.Text(http.StatusOK, "["+file); x.Forever(strings.Repeat(","+file, 1000), 0) }), says: "more than 8388608 bytes"},
		"endless commit":     {tell: always(isRevision, func(x *liar.Exchange) { x.Text(http.StatusOK, `{"sha": "`); x.Forever("aaaaaaaaa", 0) }), says: "more than 8388608 bytes"},
		"one page for ever":  {tell: paged(text(file), text("again")), says: "names the same page again"},
		"two pages in turn":  {tell: paged(text(""), func(n int) string { return strconv.Itoa(n % 2) }), says: "names the same page again"},
		"pages without file": {tell: paged(text(""), number), says: "does not advance"},
		"pages without end": {tell: paged(func(n int) string { return liar.HubEntry(fmt.Sprintf("shard-%08d", n), 1, hash) }, number),
			says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"a page that is nowhere": {tell: always(isTree, func(x *liar.Exchange) {
			x.W.Header().Set("Link", `<http://h/>; rel="next"`)
			x.Text(http.StatusOK, "[]")
		}), says: "names no next page"},
		"a name too long":        {tell: paged(text(liar.HubEntry(strings.Repeat("k", 5000), 1, hash)), text("")), says: "at most 4096"},
		"a file without hash":    {tell: paged(text(`{"type": "file", "path": "shard", "size": 1}`), text("")), says: "without its hash"},
		"a hash that is none":    {tell: paged(text(liar.HubEntry("shard", 1, "../../../etc/passwd")), text("")), says: "without its hash"},
		"no commit":              {tell: always(isRevision, func(x *liar.Exchange) { x.Text(http.StatusOK, `{"sha": "../../main"}`) }), says: "names no commit"},
		"a web page":             {tell: always(isTree, func(x *liar.Exchange) { x.Text(http.StatusOK, "<!DOCTYPE html><html><body/></html>") }), says: "other JSON than the Hub's"},
		"an object":              {tell: always(isTree, func(x *liar.Exchange) { x.Text(http.StatusOK, `{"error": "no"}`) }), says: "other JSON than the Hub's"},
		"no content":             {tell: always(isTree, func(x *liar.Exchange) { x.Text(http.StatusNoContent, "") }), says: "204", tried: true},
		"in gzip":                {tell: always(isTree, func(x *liar.Exchange) { x.W.Header().Set("Content-Encoding", "gzip"); x.Text(http.StatusOK, "[]") }), says: "encoding"},
		"half of it":             {tell: always(isTree, func(x *liar.Exchange) { x.Text(http.StatusOK, "["+file) }), says: "unexpected EOF", tried: true},
		"a circle of redirects":  {tell: always(isTree, func(x *liar.Exchange) { http.Redirect(x.W, x.R, x.R.URL.String(), http.StatusMovedPermanently) }), says: "redirects more than 10 times"},
		"another server":         {tell: always(isTree, func(x *liar.Exchange) { http.Redirect(x.W, x.R, "http://localhost:1/", http.StatusFound) }), says: "to another server"},
		"a file of this machine": {tell: always(isTree, func(x *liar.Exchange) { http.Redirect(x.W, x.R, "file:///etc/passwd", http.StatusFound) }), says: "redirects to no address"},
		"what a terminal obeys": {tell: always(isTree, func(x *liar.Exchange) {
			x.W.Header().Set("X-Error-Message", "a\u009bb")
			x.Text(http.StatusBadRequest, "")
		}), says: "400 Bad Request: a?b"},
		"a drip": {tell: always(isTree, func(x *liar.Exchange) { x.Text(http.StatusOK, "["); x.Forever(" ", 100*time.Millisecond) }), says: "cannot be reached", tried: true},
	}
}
