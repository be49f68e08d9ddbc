package listings_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
)

// listLie is a lie about what there is. The mount fails and says why.
type listLie struct {
	tell  func(x *liar.Exchange, number int) bool // of the requests that are no reads of files; false for the truth
	says  string                                  // a part of what the command says
	flags []string
	tried bool // again and again, until patience is over
}

// always makes a lie of one that is told to every request of a kind.
func always(of func(x *liar.Exchange) bool, tell func(x *liar.Exchange)) func(*liar.Exchange, int) bool {
	return func(x *liar.Exchange, _ int) bool {
		if of(x) {
			tell(x)
			return true
		}
		return false
	}
}

func isList(x *liar.Exchange) bool     { return x.R.URL.Query().Has("list-type") }
func isLocation(x *liar.Exchange) bool { return x.R.URL.Query().Has("location") }
func isIndex(x *liar.Exchange) bool    { return x.Name == "index.json" }
func isShard(x *liar.Exchange) bool    { return x.Name == "shard" }

// listings has a lie in each answer of S3 to the questions what there is.
func listings() map[string]listLie {
	page := func(entries, token string) func(x *liar.Exchange) {
		return func(x *liar.Exchange) { x.Text(http.StatusOK, liar.ListOf(entries, token)) }
	}
	open, _, _ := strings.Cut(liar.ListOf("", ""), "</ListBucketResult>")
	endless := func(text, again string) func(x *liar.Exchange) {
		return func(x *liar.Exchange) { x.Text(http.StatusOK, text); x.Forever(strings.Repeat(again, 1000), 0) }
	}
	below := func(dirs ...string) string {
		return "<CommonPrefixes><Prefix>" + strings.Join(dirs, "</Prefix></CommonPrefixes><CommonPrefixes><Prefix>") + "</Prefix></CommonPrefixes>"
	}
	shard := liar.Entry("shard", 600_000)
	return map[string]listLie{
		"endless key":        {tell: always(isList, endless(open+"<Contents><Key>", "k")), says: "more than 4194304 bytes"},
		"endless keys":       {tell: always(isList, endless(open, shard)), says: "more than the 1000 keys"},
		"endless empty keys": {tell: always(isList, endless(open, "<x:Contents/>")), says: "more than the 1000 keys"},
		"endless elements":   {tell: always(isList, endless(open+"<Contents>", "<Grant></Grant>")), says: "more than the 1000 keys"},
		"endless space":      {tell: always(isList, endless("", " \n")), says: "more than 4194304 bytes"},
		"endless location":   {tell: always(isLocation, endless("<LocationConstraint>", "eu")), says: "more bytes than any has"},
		"endless error":      {tell: always(isList, func(x *liar.Exchange) { x.Text(http.StatusBadRequest, "<Error><Code>"); x.Forever("no", 0) }), says: "more bytes than any has"},
		"one token for ever": {tell: always(isList, page(shard, "again")), says: "the same continuation token"},
		"two tokens in turn": {tell: func(x *liar.Exchange, n int) bool {
			return always(isList, page(shard, "token"+strconv.Itoa(n%2)))(x, n)
		}, says: "the same continuation token"},
		"pages without keys": {tell: func(x *liar.Exchange, n int) bool { return always(isList, page("", "token"+strconv.Itoa(n)))(x, n) }, says: "does not advance"},
		"truncated, without token": {tell: always(isList, func(x *liar.Exchange) {
			x.Text(http.StatusOK, open+"<IsTruncated>true</IsTruncated></ListBucketResult>")
		}), says: "continuation token"},
		"pages without end": {tell: func(x *liar.Exchange, n int) bool {
			return always(isList, page(liar.Entry(fmt.Sprintf("shard-%08d", n), 1), "token"+strconv.Itoa(n)))(x, n)
		}, says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"directories that name each other": {tell: always(isList, func(x *liar.Exchange) {
			dir := map[string]string{"": "a/", "a/": "b/", "b/": "a/"}[x.R.URL.Query().Get("prefix")]
			page(below(dir), "")(x)
		}), says: "lists"},
		"a directory in itself without end": {tell: always(isList, func(x *liar.Exchange) {
			page(below(x.R.URL.Query().Get("prefix")+"a/"), "")(x)
		}), says: "at most 1024"},
		"directories without end": {tell: always(isList, func(x *liar.Exchange) {
			prefix := x.R.URL.Query().Get("prefix")
			page(below(prefix+"a/", prefix+"b/", prefix+"c/"), "")(x)
		}), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"keys of elsewhere":     {tell: always(isList, func(x *liar.Exchange) { page(below("a/")+liar.Entry("b/x", 1), "")(x) }), says: `was asked for names that begin with "a/"`},
		"a key too long":        {tell: always(isList, page(liar.Entry(strings.Repeat("k", 2000), 1), "")), says: "at most 1024"},
		"a version too long":    {tell: always(isList, page(strings.Replace(shard, "<ETag>", "<ETag>"+strings.Repeat("v", 2000), 1), "")), says: "version"},
		"a web page":            {tell: always(isList, func(x *liar.Exchange) { x.Text(http.StatusOK, "<!DOCTYPE html><html><body/></html>") }), says: "S3 server"},
		"an error as success":   {tell: always(isList, func(x *liar.Exchange) { x.Text(http.StatusOK, "<Error><Code>InternalError</Code></Error>") }), says: "InternalError", tried: true},
		"accepted":              {tell: always(isList, func(x *liar.Exchange) { x.Text(http.StatusAccepted, "<Later/>") }), says: "202", tried: true},
		"no content":            {tell: always(isList, func(x *liar.Exchange) { x.Text(http.StatusNoContent, "") }), says: "204", tried: true},
		"in gzip":               {tell: always(isList, func(x *liar.Exchange) { x.W.Header().Set("Content-Encoding", "gzip"); page(shard, "")(x) }), says: "encoding"},
		"half of it":            {tell: always(isList, func(x *liar.Exchange) { x.Text(http.StatusOK, open+shard) }), says: "unexpected EOF", tried: true},
		"a circle of redirects": {tell: always(isList, func(x *liar.Exchange) { http.Redirect(x.W, x.R, x.R.URL.String(), http.StatusMovedPermanently) }), says: "301"},
		"what a terminal obeys": {tell: always(isList, func(x *liar.Exchange) {
			x.Text(http.StatusBadRequest, "<Error><Code>No</Code><Message>a\u009bb</Message></Error>")
		}), says: "No: a?b"},
	}
}

// indexes has a lie in each answer of a web server to them.
func indexes(t *testing.T) map[string]listLie {
	head := func(pairs ...string) func(x *liar.Exchange) {
		return func(x *liar.Exchange) {
			x.Head(append([]string{"Content-Length", strconv.Itoa(len(x.Data))}, pairs...)...)
		}
	}
	body := func(data []byte) func(x *liar.Exchange) {
		return func(x *liar.Exchange) {
			if x.Data = data; x.R.Method == http.MethodHead {
				head()(x)
			} else {
				x.Answer(data)
			}
		}
	}
	zeroes := append(append([]byte(`{"chunks": [`), bytes.Repeat([]byte("{},"), 1_000_000)...), "{}]}"...)
	return map[string]listLie{
		"an index too large": {tell: always(isIndex, head("Content-Length", "99999999999999")), says: "at most 268435456 are read"},
		"an index in gzip":   {tell: always(isIndex, head("Content-Encoding", "gzip")), says: "encoding"},
		"a size without end": {tell: always(isShard, head("Content-Length", "99999999999999999999")), says: "Content-Length", tried: true},
		"no size":            {tell: always(isShard, func(x *liar.Exchange) { x.Wire("200 OK", "\r\n") }), says: "does not say its size"},
		"a version too long": {tell: always(isShard, head("ETag", `"`+strings.Repeat("v", 2000)+`"`)), says: "version of 2002 bytes"},
		"endless headers": {tell: always(isShard, func(x *liar.Exchange) {
			x.Wire("200 OK", strings.Repeat("X-More: "+strings.Repeat("x", 1000)+"\r\n", 5000))
		}), says: "header", tried: true},
		"a part": {tell: always(isShard, func(x *liar.Exchange) {
			x.Headers("Content-Length", "600000")
			x.W.WriteHeader(http.StatusPartialContent)
		}), says: "206", tried: true},
		"a circle":           {tell: always(isShard, func(x *liar.Exchange) { http.Redirect(x.W, x.R, x.R.URL.Path, http.StatusFound) }), says: "redirects more than ten times"},
		"names of nothing":   {tell: always(isIndex, body(zeroes)), says: "has no name"},
		"names without end":  {tell: always(isIndex, body(liar.IndexOf(t, make1000()))), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"names of elsewhere": {tell: always(isIndex, body(liar.IndexOf(t, []string{"../../etc/passwd"}))), says: "no path below it"},
		"a drip": {tell: always(isIndex, func(x *liar.Exchange) {
			if x.R.Method == http.MethodHead {
				head()(x)
				return
			}
			x.Headers("Content-Range", x.Truth(), "Content-Length", strconv.Itoa(len(x.Data)))
			x.W.WriteHeader(http.StatusPartialContent)
			x.Forever(" ", 100*time.Millisecond)
		}), says: "cannot be reached", tried: true},
	}
}

func make1000() (names []string) {
	for i := range 1000 {
		names = append(names, fmt.Sprintf("shard-%d", i))
	}
	return names
}

// mostForLies bounds the memory of a mount that is lied to. Its own code and the race detector take a good part.
const mostForLies = 600 << 20

// TestLiesAboutListings has a server of each kind tell every lie about what there is. The mount fails in its time, in little memory, and says why.
// Nothing of the lies stays: when the server is honest at last, a mount on the same cache shows its file.
func TestLiesAboutListings(t *testing.T) {
	blackbox.NeedFUSE(t)
	for kind, lies := range map[string]map[string]listLie{"s3": listings(), "gs": gsListings(), "az": azureListings(), "hf": hubListings(), "oci": ociListings(t), "http": indexes(t)} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var told atomic.Pointer[listLie]
			var asked atomic.Int64
			files := map[string][]byte{"shard": origintest.Data(600_000, 1)}
			l := liar.Of(kind)(t, files, nil, func(x *liar.Exchange) bool { return told.Load().tell(x, int(asked.Add(1))) })
			cached := []string{"--cache-dir", suite.NewDir(t)}
			for what, lie := range lies {
				t.Run(what, func(t *testing.T) {
					asked.Store(0)
					told.Store(&lie)
					flags := append(slices.Clone(cached), lie.flags...)
					if lie.tried {
						flags = append(flags, "--patience", "2s")
					}
					wantRefused(t, l, lie, flags)
				})
			}
			l.Honest.Store(true)
			m := mount(t, l.Source(), append(cached, "--max-listing=100KiB")...) // the least of the flags above
			if err := liar.ReadThrough(m.Path("shard"), files["shard"]); err != nil {
				t.Error(err)
			}
		})
	}
}

// wantRefused mounts what cannot be mounted.
func wantRefused(t *testing.T, l *liar.Liar, lie listLie, flags []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := suite.Command(ctx, append(append([]string{"mount", "-f"}, flags...), l.Source(), suite.NewDir(t))...)
	cmd.Env = append(os.Environ(), "AWS_REGION=") // it has to be asked for
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	must(t, cmd.Start())
	most, over := make(chan int64), make(chan struct{})
	go func() { most <- mostMemory(cmd.Process.Pid, over) }()
	err := cmd.Wait()
	close(over)
	used := <-most
	if err == nil || ctx.Err() != nil || !strings.Contains(said.String(), lie.says) || strings.ContainsAny(said.String(), "\u009b\x1b") {
		t.Errorf("the mount ends by %v (%v) and says %.1000q, want %q", err, ctx.Err(), said.String(), lie.says)
	}
	if used > mostForLies {
		t.Errorf("it took %d MiB of memory", used>>20)
	}
}

// mostMemory looks at a process until it is over, and gives the most memory that it had. Later figures of the kernel have
// the memory of its parent in them.
func mostMemory(pid int, over <-chan struct{}) (most int64) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // which goes with the process
		_, text, _ := strings.Cut(string(status), "VmHWM:")
		if fields := strings.Fields(text); len(fields) > 0 {
			kib, _ := strconv.ParseInt(fields[0], 10, 64) // 0 for what is none
			most = max(most, kib<<10)
		}
		select {
		case <-over:
			return most
		case <-tick.C:
		}
	}
}

// TestListingThatFailsWithStatus200 has the first pages be errors under a status of success, as S3 sends them when it learns of a
// failure late. They are asked for again.
func TestListingThatFailsWithStatus200(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	var asked atomic.Int64
	files := map[string][]byte{"shard": origintest.Data(600_000, 1), "below/shard": origintest.Data(1000, 2)}
	l := liar.S3(t, files, nil, func(x *liar.Exchange) bool {
		if !isList(x) || asked.Add(1) > 3 {
			return false
		}
		x.Text(http.StatusOK, `<?xml version="1.0" encoding="UTF-8"?>`+"\n<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
		return true
	})
	m := mount(t, l.Source())
	for name, data := range files {
		if err := liar.ReadThrough(m.Path(name), data); err != nil {
			t.Error(err)
		}
	}
	if n := asked.Load(); n < 4 {
		t.Errorf("%d pages were asked for", n)
	}
}
