package lies_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
)

// hasty and patient are how long the reader of a lie waits: one that is told for ever is tried again until it is over.
const (
	hasty   = 2 * time.Second
	patient = time.Minute
)

// lie is an answer to a request for a range that contradicts the request, the listing or itself, or never ends.
type lie struct {
	tell func(x *liar.Exchange)
	want error // of the reader; nil where the bytes are right after all, and must be taken
	once bool  // it is not tried again
	web  bool  // only a web server's: S3 has no redirects, and another meaning for these
}

func zipped(p []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.NoCompression) // there is such a level; random bytes only cost time otherwise
	_, _ = w.Write(p)                                     // a Buffer takes all
	_ = w.Close()
	return out.Bytes()
}

// lies are told about files of these names.
func lies() map[string]lie {
	const eio, estale, eacces = syscall.EIO, syscall.ESTALE, syscall.EACCES
	ranged := func(x *liar.Exchange) string { return "Content-Range: " + x.Truth() + "\r\n" }
	length := func(n int) string { return "Content-Length: " + strconv.Itoa(n) + "\r\n\r\n" }
	chunk := func(p []byte) string { return fmt.Sprintf("%x\r\n%s\r\n", len(p), p) }
	header := func(pairs ...string) func(*liar.Exchange) {
		return func(x *liar.Exchange) { x.Answer(x.Right(), pairs...) }
	}
	status := func(code int, body string) func(*liar.Exchange) {
		return func(x *liar.Exchange) { x.Text(code, body) }
	}
	return map[string]lie{
		// Encodings.
		"gzip-with-its-length": {tell: func(x *liar.Exchange) { x.Answer(zipped(x.Right()), "Content-Encoding", "gzip") }, want: eio, once: true},
		"gzip-without-length": {tell: func(x *liar.Exchange) {
			x.Answer(zipped(x.Right()), "Content-Encoding", "gzip", "Content-Length", "")
		}, want: eio, once: true},
		"gzip-in-name-only": {tell: header("Content-Encoding", "gzip"), want: eio, once: true},
		"unknown-encoding":  {tell: header("Content-Encoding", "x-secret"), want: eio, once: true},
		"encoded-transfer": {tell: func(x *liar.Exchange) {
			x.Wire("206 P", ranged(x), "Transfer-Encoding: gzip\r\n\r\n", zipped(x.Right()))
		}, want: eio},
		"identity":           {tell: header("Content-Encoding", "identity")},
		"stored-aws-chunked": {tell: header("Content-Encoding", "aws-chunked")},

		// Statuses.
		"whole-with-more": {tell: func(x *liar.Exchange) {
			x.Headers("Content-Length", strconv.Itoa(len(x.Data)+1))
			x.W.WriteHeader(http.StatusOK)
			_, _ = x.W.Write(append(bytes.Clone(x.Data), 'x')) // they may have hung up
		}, want: eio},
		"whole-without-length": {tell: func(x *liar.Exchange) { x.Wire("200 OK", "\r\n", x.Data) }, want: eio, once: true},
		"login-page":           {tell: func(x *liar.Exchange) { x.Text(http.StatusOK, "<html><body>Log in!</body></html>") }, want: eio},
		"accepted":             {tell: status(http.StatusAccepted, "<?xml version=\"1.0\"?><Later></Later>"), want: eio},
		"no-content":           {tell: status(http.StatusNoContent, ""), want: eio},
		"not-modified":         {tell: status(http.StatusNotModified, ""), want: eio, once: true},
		"teapot":               {tell: status(http.StatusTeapot, ""), want: eio, once: true},
		"broken":               {tell: status(http.StatusInternalServerError, ""), want: eio},
		"gone":                 {tell: status(http.StatusNotFound, "<Error><Code>NoSuchKey</Code></Error>"), want: estale},
		"denied":               {tell: status(http.StatusForbidden, "<Error><Code>AccessDenied</Code></Error>"), want: eacces},
		"replaced":             {tell: status(http.StatusPreconditionFailed, "<Error><Code>PreconditionFailed</Code></Error>"), want: estale},
		"shrunk":               {tell: status(http.StatusRequestedRangeNotSatisfiable, "<Error><Code>InvalidRange</Code></Error>"), want: estale},
		"redirect-to-itself":   {tell: func(x *liar.Exchange) { http.Redirect(x.W, x.R, x.R.URL.Path, http.StatusFound) }, want: eio, once: true},
		"redirect-to-a-file":   {tell: func(x *liar.Exchange) { http.Redirect(x.W, x.R, "file:///etc/passwd", http.StatusFound) }, want: eio, once: true},
		"redirect-here": {tell: func(x *liar.Exchange) {
			if x.R.URL.RawQuery != "" {
				x.Answer(x.Right())
				return
			}
			http.Redirect(x.W, x.R, x.R.URL.Path+"?again", http.StatusTemporaryRedirect)
		}, web: true},

		// Ranges and totals.
		"next-range": {tell: func(x *liar.Exchange) {
			x.Answer(x.Right(), "Content-Range", fmt.Sprintf("bytes %d-%d/%d", x.From+1, x.To, len(x.Data)))
		}, want: eio},
		"range-of-less": {tell: func(x *liar.Exchange) {
			x.Answer(x.Right()[:100], "Content-Range", fmt.Sprintf("bytes %d-%d/%d", x.From, x.From+99, len(x.Data)))
		}, want: eio},
		"other-total": {tell: func(x *liar.Exchange) {
			x.Answer(x.Right(), "Content-Range", fmt.Sprintf("bytes %d-%d/%d", x.From, x.To-1, len(x.Data)*10))
		}, want: estale},
		"unknown-total": {tell: func(x *liar.Exchange) {
			x.Answer(x.Right(), "Content-Range", fmt.Sprintf("bytes %d-%d/*", x.From, x.To-1))
		}, want: eio},
		"negative-range": {tell: header("Content-Range", "bytes -1--1/-1"), want: estale},
		"other-unit": {tell: func(x *liar.Exchange) {
			x.Answer(x.Right(), "Content-Range", strings.Replace(x.Truth(), "bytes", "tokens", 1))
		}, want: eio},
		"no-range": {tell: header("Content-Range", ""), want: eio},
		"several-ranges": {tell: func(x *liar.Exchange) {
			x.Answer([]byte("--x\r\n\r\nA\r\n--x--"), "Content-Range", "", "Content-Type", "multipart/byteranges; boundary=x")
		}, want: eio},
		"several-by-name": {tell: header("Content-Type", "multipart/byteranges; boundary=x"), want: eio},
		"ranges-that-vary": {tell: func(x *liar.Exchange) {
			x.W.Header()["Content-range"] = []string{"bytes 0-1/2"}
			x.Answer(x.Right())
		}, want: eio},

		// Lengths and ends.
		"says-less":  {tell: func(x *liar.Exchange) { x.Answer(x.Right()[:len(x.Right())/2]) }, want: eio},
		"says-more":  {tell: func(x *liar.Exchange) { x.Answer(append(bytes.Clone(x.Right()), 1, 2, 3)) }, want: eio},
		"ends-early": {tell: func(x *liar.Exchange) { x.Wire("206 P", ranged(x), length(len(x.Right())), x.Right()[:10]) }, want: eio},
		"two-lengths": {tell: func(x *liar.Exchange) {
			x.Wire("206 P", ranged(x), "Content-Length: 1\r\n", length(len(x.Right())), x.Right())
		}, want: eio},
		"no-length":        {tell: func(x *liar.Exchange) { x.Wire("206 P", ranged(x), "\r\n", x.Right()) }},
		"chunked":          {tell: header("Content-Length", "")},
		"chunked-and-more": {tell: func(x *liar.Exchange) { x.Answer(append(bytes.Clone(x.Right()), 1, 2, 3), "Content-Length", "") }, want: eio},
		"chunked-and-less": {tell: func(x *liar.Exchange) { x.Answer(x.Right()[:len(x.Right())-1], "Content-Length", "") }, want: eio},
		"chunked-without-end": {tell: func(x *liar.Exchange) {
			x.Wire("206 P", ranged(x), "Transfer-Encoding: chunked\r\n\r\n", chunk(x.Right()))
		}, want: eio},
		"endless": {tell: func(x *liar.Exchange) {
			x.Answer(x.Right(), "Content-Length", "")
			x.Forever(strings.Repeat("more", 1000), 0)
		}, want: eio},
		"followed-by-rubbish": {tell: func(x *liar.Exchange) {
			x.Wire("206 P", ranged(x), length(len(x.Right())), x.Right(), "rubbish\r\n\r\n")
		}},
		"endless-header": {tell: func(x *liar.Exchange) {
			x.Wire("206 P", strings.Repeat("X-More: "+strings.Repeat("x", 1000)+"\r\n", 5000))
		}, want: eio},
		"endless-continue": {tell: func(x *liar.Exchange) {
			x.Wire("100 Continue", "\r\n", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 1000))
		}, want: eio},
		"no-http": {tell: func(x *liar.Exchange) { x.Wire("\x00\xff") }, want: eio},

		// Versions.
		"other-version": {tell: header("ETag", `"other"`), want: estale},
		"no-version":    {tell: header("ETag", "", "Last-Modified", ""), want: eio},
		"weak-version":  {tell: func(x *liar.Exchange) { x.Answer(x.Right(), "ETag", "W/"+x.Tag) }, want: estale},

		// Time.
		"silent": {tell: func(x *liar.Exchange) { <-x.R.Context().Done() }, want: eio},
		"stalls": {tell: func(x *liar.Exchange) {
			x.Headers("Content-Range", x.Truth(), "Content-Length", strconv.Itoa(len(x.Right())))
			x.W.WriteHeader(http.StatusPartialContent)
			_, _ = x.W.Write(x.Right()[:1000]) // they may have hung up
			_ = http.NewResponseController(x.W).Flush()
			<-x.R.Context().Done()
		}, want: eio},
		"drips": {tell: func(x *liar.Exchange) {
			x.Headers("Content-Range", x.Truth(), "Content-Length", strconv.Itoa(len(x.Right())))
			x.W.WriteHeader(http.StatusPartialContent)
			for _, c := range x.Right() {
				_, _ = x.W.Write([]byte{c}) // they may have hung up
				if http.NewResponseController(x.W).Flush() != nil || x.R.Context().Err() != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}, want: eio},
		"a-byte-each": {tell: func(x *liar.Exchange) { x.Wire("206 P", ranged(x), length(len(x.Right())), x.Right()[:1]) }, want: eio},
	}
}

// TestLiesAboutBytes has a server tell every lie about a file of its own, to readers of a mount. No reader sees a byte that
// is not the file's: it gets the right ones, or an error. Nothing of a lie stays: when the server is honest again, all
// bytes are right, in a mount that is there and in a new one on the same cache, which is sound.
func TestLiesAboutBytes(t *testing.T) {
	blackbox.NeedFUSE(t)
	for _, name := range []string{"s3", "gs", "http"} {
		for kind, patience := range map[string]time.Duration{"tried": hasty, "once": patient} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				told := lies()
				maps.DeleteFunc(told, func(_ string, l lie) bool {
					once := l.once || !errors.Is(l.want, syscall.EIO)
					return l.web && name != "http" || once != (kind == "once")
				})
				tellAll(t, liar.Of(name), told, patience)
			})
		}
	}
}

func tellAll(t *testing.T, liarOf liar.Maker, told map[string]lie, patience time.Duration) {
	files := map[string][]byte{}
	for name := range told {
		files[name] = origintest.Data(300_000+len(name), name[0])
	}
	l := liarOf(t, files, func(x *liar.Exchange) bool { told[x.Name].tell(x); return true }, nil)
	cached := suite.NewDir(t)
	flags := []string{"--cache-dir", cached, "--cache-segment", "1MiB", "--connections", "128", "--patience"}
	m := mount(t, l.Source(), "", append(flags, patience.String())...)
	var wg sync.WaitGroup
	for name, lie := range told {
		wg.Go(func() {
			if err := liar.ReadThrough(m.Path(name), files[name]); !errors.Is(err, lie.want) {
				t.Errorf("%s: %v, want %v", name, err, lie.want)
			}
		})
	}
	wg.Wait()
	l.Honest.Store(true)
	again := mount(t, l.Source(), "", append(flags, patient.String())...)
	mounts := []*mounted{again}
	if patience == patient { // and no machine is too slow for it
		mounts = append(mounts, m)
	}
	for _, m := range mounts {
		for _, name := range slices.Sorted(maps.Keys(l.Files)) {
			if err := liar.ReadThrough(m.Path(name), l.Files[name]); err != nil {
				t.Errorf("%s, of a server that is honest again: %v", name, err)
			}
		}
	}
	if _, err := suite.Output(t.Context(), "cache", "verify", cached); err != nil {
		t.Errorf("what lies left in the cache: %v", err)
	}
	if t.Failed() {
		t.Logf("log:\n%s", m.LogText(t))
	}
}
