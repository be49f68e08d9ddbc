package lies_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

const hubCommit = "0123456789abcdef0123456789abcdef01234567"

// newHubLiar makes a liar of a Hugging Face Hub. The Hub is at 127.0.0.1, and its storage, which has all files and tells the lies about
// bytes, at another name of the same server. Lies about listings are the Hub's.
func newHubLiar(t testing.TB, files map[string][]byte, read, list func(x *exchange) bool) *liar {
	l := &liar{files: maps.Clone(files), s3: true, read: read}
	l.hub = func(w http.ResponseWriter, r *http.Request) bool {
		x := &exchange{w: w, r: r}
		api, isAPI := strings.CutPrefix(r.URL.Path, "/api/datasets/org/name/")
		name, isFile := strings.CutPrefix(r.URL.Path, "/datasets/org/name/resolve/"+hubCommit+"/")
		switch {
		case isAPI && !l.honest.Load() && list != nil && list(x):
		case isAPI && strings.HasPrefix(api, "revision/"):
			x.text(http.StatusOK, `{"sha": "`+hubCommit+`"}`)
		case isAPI && strings.HasPrefix(api, "commits/"):
			x.text(http.StatusOK, `[{"id": "`+hubCommit+`", "date": "2026-01-01T00:00:00.000Z"}]`)
		case isAPI:
			var entries []string
			for _, name := range slices.Sorted(maps.Keys(l.files)) {
				entries = append(entries, hubEntry(name, len(l.files[name]), hubHash(l.files[name])))
			}
			x.text(http.StatusOK, "["+strings.Join(entries, ",")+"]")
		case isFile:
			w.Header().Set("X-Linked-Etag", `"`+hubHash(l.files[name])+`"`)
			http.Redirect(w, r, strings.Replace(l.URL, "127.0.0.1", "localhost", 1)+"/"+liarBucket+"/"+name, http.StatusFound)
		}
		return isAPI || isFile
	}
	return l.start(t)
}

func hubHash(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

func hubEntry(name string, size int, hash string) string {
	text, _ := json.Marshal(name) // a string
	return fmt.Sprintf(`{"type": "file", "oid": "%s", "size": %d, "path": %s, "lfs": {"oid": %q, "size": %d, "pointerSize": 130}}`, hubCommit, size, text, hash, size)
}

// hubLies are the lies of a Hub's storage. A version is the Hub's word, which the storage cannot change. An address that the storage refuses
// is signed again, until patience is over.
func hubLies() map[string]lie {
	told := lies()
	for name, want := range map[string]error{
		"gone": syscall.EIO, "denied": syscall.EIO, "replaced": syscall.EIO, "not-modified": syscall.EIO, "other-version": nil, "no-version": nil, "weak-version": nil,
	} {
		l := told[name]
		l.want, l.once = want, name == "replaced"
		told[name] = l
	}
	return told
}

// TestLiesAboutBytesOfTheHub is TestLiesAboutBytes for the storage of a Hub.
func TestLiesAboutBytesOfTheHub(t *testing.T) {
	blackbox.NeedFUSE(t)
	for kind, patience := range map[string]time.Duration{"tried": hasty, "once": patient} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			told := hubLies()
			maps.DeleteFunc(told, func(_ string, l lie) bool { return (l.once || !errors.Is(l.want, syscall.EIO)) != (kind == "once") })
			tellAll(t, newHubLiar, told, patience)
		})
	}
}

// hubListings has a lie in each answer of a Hub to the questions what there is.
func hubListings() map[string]listLie {
	isTree := func(x *exchange) bool { return strings.Contains(x.r.URL.Path, "/tree/") }
	isRevision := func(x *exchange) bool { return strings.Contains(x.r.URL.Path, "/revision/") }
	hash := strings.Repeat("a", 64)
	page := func(entries, cursor string) func(x *exchange) {
		return func(x *exchange) {
			if cursor != "" {
				x.w.Header().Set("Link", `<http://elsewhere/api?cursor=`+cursor+`>; rel="next"`)
			}
			x.text(http.StatusOK, "["+entries+"]")
		}
	}
	paged := func(entries, cursor func(n int) string) func(*exchange, int) bool {
		return func(x *exchange, n int) bool { return always(isTree, page(entries(n), cursor(n)))(x, n) }
	}
	text := func(text string) func(int) string { return func(int) string { return text } }
	number := func(n int) string { return strconv.Itoa(n) }
	file := hubEntry("shard", 600_000, hash)
	return map[string]listLie{
		"endless name":       {tell: always(isTree, func(x *exchange) { x.text(http.StatusOK, `[{"path": "`); x.forever("kkkkkkkkkk", 0) }), says: "more than 8388608 bytes"},
		"endless files":      {tell: always(isTree, func(x *exchange) { x.text(http.StatusOK, "["+file); x.forever(strings.Repeat(","+file, 1000), 0) }), says: "more than 8388608 bytes"},
		"endless commit":     {tell: always(isRevision, func(x *exchange) { x.text(http.StatusOK, `{"sha": "`); x.forever("aaaaaaaaa", 0) }), says: "more than 8388608 bytes"},
		"one page for ever":  {tell: paged(text(file), text("again")), says: "names the same page again"},
		"two pages in turn":  {tell: paged(text(""), func(n int) string { return strconv.Itoa(n % 2) }), says: "names the same page again"},
		"pages without file": {tell: paged(text(""), number), says: "does not advance"},
		"pages without end": {tell: paged(func(n int) string { return hubEntry(fmt.Sprintf("shard-%08d", n), 1, hash) }, number),
			says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"a page that is nowhere": {tell: always(isTree, func(x *exchange) { x.w.Header().Set("Link", `<http://h/>; rel="next"`); x.text(http.StatusOK, "[]") }), says: "names no next page"},
		"a name too long":        {tell: paged(text(hubEntry(strings.Repeat("k", 5000), 1, hash)), text("")), says: "at most 4096"},
		"a file without hash":    {tell: paged(text(`{"type": "file", "path": "shard", "size": 1}`), text("")), says: "without its hash"},
		"a hash that is none":    {tell: paged(text(hubEntry("shard", 1, "../../../etc/passwd")), text("")), says: "without its hash"},
		"no commit":              {tell: always(isRevision, func(x *exchange) { x.text(http.StatusOK, `{"sha": "../../main"}`) }), says: "names no commit"},
		"a web page":             {tell: always(isTree, func(x *exchange) { x.text(http.StatusOK, "<!DOCTYPE html><html><body/></html>") }), says: "other JSON than the Hub's"},
		"an object":              {tell: always(isTree, func(x *exchange) { x.text(http.StatusOK, `{"error": "no"}`) }), says: "other JSON than the Hub's"},
		"no content":             {tell: always(isTree, func(x *exchange) { x.text(http.StatusNoContent, "") }), says: "204", tried: true},
		"in gzip":                {tell: always(isTree, func(x *exchange) { x.w.Header().Set("Content-Encoding", "gzip"); x.text(http.StatusOK, "[]") }), says: "encoding"},
		"half of it":             {tell: always(isTree, func(x *exchange) { x.text(http.StatusOK, "["+file) }), says: "unexpected EOF", tried: true},
		"a circle of redirects":  {tell: always(isTree, func(x *exchange) { http.Redirect(x.w, x.r, x.r.URL.String(), http.StatusMovedPermanently) }), says: "redirects more than 10 times"},
		"another server":         {tell: always(isTree, func(x *exchange) { http.Redirect(x.w, x.r, "http://localhost:1/", http.StatusFound) }), says: "to another server"},
		"a file of this machine": {tell: always(isTree, func(x *exchange) { http.Redirect(x.w, x.r, "file:///etc/passwd", http.StatusFound) }), says: "redirects to no address"},
		"what a terminal obeys": {tell: always(isTree, func(x *exchange) {
			x.w.Header().Set("X-Error-Message", "a\u009bb")
			x.text(http.StatusBadRequest, "")
		}), says: "400 Bad Request: a?b"},
		"a drip": {tell: always(isTree, func(x *exchange) { x.text(http.StatusOK, "["); x.forever(" ", 100*time.Millisecond) }), says: "cannot be reached", tried: true},
	}
}

// TestLiesAboutListingsOfTheHub is TestLiesAboutListings for a Hub.
func TestLiesAboutListingsOfTheHub(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	turns := make(chan struct{}, 4)
	for what, lie := range hubListings() {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			var asked atomic.Int64
			files := map[string][]byte{"shard": origintest.Data(600_000, 1)}
			l := newHubLiar(t, files, nil, func(x *exchange) bool { return lie.tell(x, int(asked.Add(1))) })
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
