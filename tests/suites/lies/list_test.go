package lies_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// listLie is a lie about what there is. The mount fails and says why.
type listLie struct {
	tell  func(x *exchange, number int) bool // of the requests that are no reads of files; false for the truth
	says  string                             // a part of what the command says
	flags []string
	tried bool // again and again, until patience is over
}

// always makes a lie of one that is told to every request of a kind.
func always(of func(x *exchange) bool, tell func(x *exchange)) func(*exchange, int) bool {
	return func(x *exchange, _ int) bool {
		if of(x) {
			tell(x)
			return true
		}
		return false
	}
}

func isList(x *exchange) bool     { return x.r.URL.Query().Has("list-type") }
func isLocation(x *exchange) bool { return x.r.URL.Query().Has("location") }
func isIndex(x *exchange) bool    { return x.name == "index.json" }
func isShard(x *exchange) bool    { return x.name == "shard" }

// listings has a lie in each answer of S3 to the questions what there is.
func listings() map[string]listLie {
	page := func(entries, token string) func(x *exchange) {
		return func(x *exchange) { x.text(http.StatusOK, listOf(entries, token)) }
	}
	open, _, _ := strings.Cut(listOf("", ""), "</ListBucketResult>")
	endless := func(text, again string) func(x *exchange) {
		return func(x *exchange) { x.text(http.StatusOK, text); x.forever(strings.Repeat(again, 1000), 0) }
	}
	below := func(dirs ...string) string {
		return "<CommonPrefixes><Prefix>" + strings.Join(dirs, "</Prefix></CommonPrefixes><CommonPrefixes><Prefix>") + "</Prefix></CommonPrefixes>"
	}
	shard := entry("shard", 600_000)
	return map[string]listLie{
		"endless key":              {tell: always(isList, endless(open+"<Contents><Key>", "k")), says: "more than 4194304 bytes"},
		"endless keys":             {tell: always(isList, endless(open, shard)), says: "more than the 1000 keys"},
		"endless empty keys":       {tell: always(isList, endless(open, "<x:Contents/>")), says: "more than the 1000 keys"},
		"endless elements":         {tell: always(isList, endless(open+"<Contents>", "<Grant></Grant>")), says: "more than the 1000 keys"},
		"endless space":            {tell: always(isList, endless("", " \n")), says: "more than 4194304 bytes"},
		"endless location":         {tell: always(isLocation, endless("<LocationConstraint>", "eu")), says: "more bytes than any has"},
		"endless error":            {tell: always(isList, func(x *exchange) { x.text(http.StatusBadRequest, "<Error><Code>"); x.forever("no", 0) }), says: "more bytes than any has"},
		"one token for ever":       {tell: always(isList, page(shard, "again")), says: "the same continuation token"},
		"two tokens in turn":       {tell: func(x *exchange, n int) bool { return always(isList, page(shard, "token"+strconv.Itoa(n%2)))(x, n) }, says: "the same continuation token"},
		"pages without keys":       {tell: func(x *exchange, n int) bool { return always(isList, page("", "token"+strconv.Itoa(n)))(x, n) }, says: "does not advance"},
		"truncated, without token": {tell: always(isList, func(x *exchange) { x.text(http.StatusOK, open+"<IsTruncated>true</IsTruncated></ListBucketResult>") }), says: "continuation token"},
		"pages without end": {tell: func(x *exchange, n int) bool {
			return always(isList, page(entry(fmt.Sprintf("shard-%08d", n), 1), "token"+strconv.Itoa(n)))(x, n)
		}, says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"directories that name each other": {tell: always(isList, func(x *exchange) {
			dir := map[string]string{"": "a/", "a/": "b/", "b/": "a/"}[x.r.URL.Query().Get("prefix")]
			page(below(dir), "")(x)
		}), says: "lists"},
		"a directory in itself without end": {tell: always(isList, func(x *exchange) {
			page(below(x.r.URL.Query().Get("prefix")+"a/"), "")(x)
		}), says: "at most 1024"},
		"directories without end": {tell: always(isList, func(x *exchange) {
			prefix := x.r.URL.Query().Get("prefix")
			page(below(prefix+"a/", prefix+"b/", prefix+"c/"), "")(x)
		}), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"keys of elsewhere":     {tell: always(isList, func(x *exchange) { page(below("a/")+entry("b/x", 1), "")(x) }), says: `was asked for keys that begin with "a/"`},
		"a key too long":        {tell: always(isList, page(entry(strings.Repeat("k", 2000), 1), "")), says: "at most 1024"},
		"a version too long":    {tell: always(isList, page(strings.Replace(shard, "<ETag>", "<ETag>"+strings.Repeat("v", 2000), 1), "")), says: "version"},
		"a web page":            {tell: always(isList, func(x *exchange) { x.text(http.StatusOK, "<!DOCTYPE html><html><body/></html>") }), says: "S3 server"},
		"an error as success":   {tell: always(isList, func(x *exchange) { x.text(http.StatusOK, "<Error><Code>InternalError</Code></Error>") }), says: "InternalError", tried: true},
		"accepted":              {tell: always(isList, func(x *exchange) { x.text(http.StatusAccepted, "<Later/>") }), says: "202", tried: true},
		"no content":            {tell: always(isList, func(x *exchange) { x.text(http.StatusNoContent, "") }), says: "204", tried: true},
		"in gzip":               {tell: always(isList, func(x *exchange) { x.w.Header().Set("Content-Encoding", "gzip"); page(shard, "")(x) }), says: "encoding"},
		"half of it":            {tell: always(isList, func(x *exchange) { x.text(http.StatusOK, open+shard) }), says: "unexpected EOF", tried: true},
		"a circle of redirects": {tell: always(isList, func(x *exchange) { http.Redirect(x.w, x.r, x.r.URL.String(), http.StatusMovedPermanently) }), says: "301"},
		"what a terminal obeys": {tell: always(isList, func(x *exchange) {
			x.text(http.StatusBadRequest, "<Error><Code>No</Code><Message>a\u009bb</Message></Error>")
		}), says: "No: a?b"},
	}
}

// indexes has a lie in each answer of a web server to them.
func indexes(t *testing.T) map[string]listLie {
	head := func(pairs ...string) func(x *exchange) {
		return func(x *exchange) { x.head(append([]string{"Content-Length", strconv.Itoa(len(x.data))}, pairs...)...) }
	}
	body := func(data []byte) func(x *exchange) {
		return func(x *exchange) {
			if x.data = data; x.r.Method == http.MethodHead {
				head()(x)
			} else {
				x.answer(data)
			}
		}
	}
	zeroes := append(append([]byte(`{"chunks": [`), bytes.Repeat([]byte("{},"), 1_000_000)...), "{}]}"...)
	return map[string]listLie{
		"an index too large": {tell: always(isIndex, head("Content-Length", "99999999999999")), says: "at most 268435456 are read"},
		"an index in gzip":   {tell: always(isIndex, head("Content-Encoding", "gzip")), says: "encoding"},
		"a size without end": {tell: always(isShard, head("Content-Length", "99999999999999999999")), says: "Content-Length", tried: true},
		"no size":            {tell: always(isShard, func(x *exchange) { x.wire("200 OK", "\r\n") }), says: "does not say its size"},
		"a version too long": {tell: always(isShard, head("ETag", `"`+strings.Repeat("v", 2000)+`"`)), says: "version of 2002 bytes"},
		"endless headers":    {tell: always(isShard, func(x *exchange) { x.wire("200 OK", strings.Repeat("X-More: "+strings.Repeat("x", 1000)+"\r\n", 5000)) }), says: "header", tried: true},
		"a part":             {tell: always(isShard, func(x *exchange) { x.headers("Content-Length", "600000"); x.w.WriteHeader(http.StatusPartialContent) }), says: "206", tried: true},
		"a circle":           {tell: always(isShard, func(x *exchange) { http.Redirect(x.w, x.r, x.r.URL.Path, http.StatusFound) }), says: "redirects more than ten times"},
		"names of nothing":   {tell: always(isIndex, body(zeroes)), says: "has no name"},
		"names without end":  {tell: always(isIndex, body(indexOf(t, make1000()))), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"names of elsewhere": {tell: always(isIndex, body(indexOf(t, []string{"../../etc/passwd"}))), says: "no path below it"},
		"a drip": {tell: always(isIndex, func(x *exchange) {
			if x.r.Method == http.MethodHead {
				head()(x)
				return
			}
			x.headers("Content-Range", x.truth(), "Content-Length", strconv.Itoa(len(x.data)))
			x.w.WriteHeader(http.StatusPartialContent)
			x.forever(" ", 100*time.Millisecond)
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

// TestLiesAboutListings has servers tell every lie about what there is. The mount fails in its time, in little memory, and
// says why. When the server is honest, the same command mounts.
func TestLiesAboutListings(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	turns := make(chan struct{}, 4)
	for name, lies := range map[string]map[string]listLie{"s3": listings(), "gs": gsListings(), "az": azureListings(), "http": indexes(t)} {
		for what, lie := range lies {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				turns <- struct{}{}
				defer func() { <-turns }()
				files := map[string][]byte{"shard": origintest.Data(600_000, 1)}
				var asked atomic.Int64
				l := makerOf(name)(t, files, nil, func(x *exchange) bool { return lie.tell(x, int(asked.Add(1))) })
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
}

// wantRefused mounts what cannot be mounted.
func wantRefused(t *testing.T, l *liar, lie listLie, flags []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := suite.Command(ctx, append(append([]string{"mount", "-f"}, flags...), l.source(), suite.NewDir(t))...)
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
