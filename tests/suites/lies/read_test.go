package lies_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// hasty and patient are how long the reader of a lie waits: one that is told for ever is tried again until it is over.
const (
	hasty   = 2 * time.Second
	patient = time.Minute
)

// lie is an answer to a request for a range that contradicts the request, the listing or itself, or never ends.
type lie struct {
	tell func(x *exchange)
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
	ranged := func(x *exchange) string { return "Content-Range: " + x.truth() + "\r\n" }
	length := func(n int) string { return "Content-Length: " + strconv.Itoa(n) + "\r\n\r\n" }
	chunk := func(p []byte) string { return fmt.Sprintf("%x\r\n%s\r\n", len(p), p) }
	header := func(pairs ...string) func(*exchange) {
		return func(x *exchange) { x.answer(x.right(), pairs...) }
	}
	status := func(code int, body string) func(*exchange) {
		return func(x *exchange) { x.text(code, body) }
	}
	return map[string]lie{
		// Encodings.
		"gzip-with-its-length": {tell: func(x *exchange) { x.answer(zipped(x.right()), "Content-Encoding", "gzip") }, want: eio, once: true},
		"gzip-without-length": {tell: func(x *exchange) {
			x.answer(zipped(x.right()), "Content-Encoding", "gzip", "Content-Length", "")
		}, want: eio, once: true},
		"gzip-in-name-only":  {tell: header("Content-Encoding", "gzip"), want: eio, once: true},
		"unknown-encoding":   {tell: header("Content-Encoding", "x-secret"), want: eio, once: true},
		"encoded-transfer":   {tell: func(x *exchange) { x.wire("206 P", ranged(x), "Transfer-Encoding: gzip\r\n\r\n", zipped(x.right())) }, want: eio},
		"identity":           {tell: header("Content-Encoding", "identity")},
		"stored-aws-chunked": {tell: header("Content-Encoding", "aws-chunked")},

		// Statuses.
		"whole-with-more": {tell: func(x *exchange) {
			x.headers("Content-Length", strconv.Itoa(len(x.data)+1))
			x.w.WriteHeader(http.StatusOK)
			_, _ = x.w.Write(append(bytes.Clone(x.data), 'x')) // they may have hung up
		}, want: eio},
		"whole-without-length": {tell: func(x *exchange) { x.wire("200 OK", "\r\n", x.data) }, want: eio, once: true},
		"login-page":           {tell: func(x *exchange) { x.text(http.StatusOK, "<html><body>Log in!</body></html>") }, want: eio},
		"accepted":             {tell: status(http.StatusAccepted, "<?xml version=\"1.0\"?><Later></Later>"), want: eio},
		"no-content":           {tell: status(http.StatusNoContent, ""), want: eio},
		"not-modified":         {tell: status(http.StatusNotModified, ""), want: eio, once: true},
		"teapot":               {tell: status(http.StatusTeapot, ""), want: eio, once: true},
		"broken":               {tell: status(http.StatusInternalServerError, ""), want: eio},
		"gone":                 {tell: status(http.StatusNotFound, "<Error><Code>NoSuchKey</Code></Error>"), want: estale},
		"denied":               {tell: status(http.StatusForbidden, "<Error><Code>AccessDenied</Code></Error>"), want: eacces},
		"replaced":             {tell: status(http.StatusPreconditionFailed, "<Error><Code>PreconditionFailed</Code></Error>"), want: estale},
		"shrunk":               {tell: status(http.StatusRequestedRangeNotSatisfiable, "<Error><Code>InvalidRange</Code></Error>"), want: estale},
		"redirect-to-itself":   {tell: func(x *exchange) { http.Redirect(x.w, x.r, x.r.URL.Path, http.StatusFound) }, want: eio, once: true},
		"redirect-to-a-file":   {tell: func(x *exchange) { http.Redirect(x.w, x.r, "file:///etc/passwd", http.StatusFound) }, want: eio, once: true},
		"redirect-here": {tell: func(x *exchange) {
			if x.r.URL.RawQuery != "" {
				x.answer(x.right())
				return
			}
			http.Redirect(x.w, x.r, x.r.URL.Path+"?again", http.StatusTemporaryRedirect)
		}, web: true},

		// Ranges and totals.
		"next-range": {tell: func(x *exchange) {
			x.answer(x.right(), "Content-Range", fmt.Sprintf("bytes %d-%d/%d", x.from+1, x.to, len(x.data)))
		}, want: eio},
		"range-of-less": {tell: func(x *exchange) {
			x.answer(x.right()[:100], "Content-Range", fmt.Sprintf("bytes %d-%d/%d", x.from, x.from+99, len(x.data)))
		}, want: eio},
		"other-total": {tell: func(x *exchange) {
			x.answer(x.right(), "Content-Range", fmt.Sprintf("bytes %d-%d/%d", x.from, x.to-1, len(x.data)*10))
		}, want: estale},
		"unknown-total":  {tell: func(x *exchange) { x.answer(x.right(), "Content-Range", fmt.Sprintf("bytes %d-%d/*", x.from, x.to-1)) }, want: eio},
		"negative-range": {tell: header("Content-Range", "bytes -1--1/-1"), want: estale},
		"other-unit": {tell: func(x *exchange) {
			x.answer(x.right(), "Content-Range", strings.Replace(x.truth(), "bytes", "tokens", 1))
		}, want: eio},
		"no-range": {tell: header("Content-Range", ""), want: eio},
		"several-ranges": {tell: func(x *exchange) {
			x.answer([]byte("--x\r\n\r\nA\r\n--x--"), "Content-Range", "", "Content-Type", "multipart/byteranges; boundary=x")
		}, want: eio},
		"several-by-name": {tell: header("Content-Type", "multipart/byteranges; boundary=x"), want: eio},
		"ranges-that-vary": {tell: func(x *exchange) {
			x.w.Header()["Content-range"] = []string{"bytes 0-1/2"}
			x.answer(x.right())
		}, want: eio},

		// Lengths and ends.
		"says-less":  {tell: func(x *exchange) { x.answer(x.right()[:len(x.right())/2]) }, want: eio},
		"says-more":  {tell: func(x *exchange) { x.answer(append(bytes.Clone(x.right()), 1, 2, 3)) }, want: eio},
		"ends-early": {tell: func(x *exchange) { x.wire("206 P", ranged(x), length(len(x.right())), x.right()[:10]) }, want: eio},
		"two-lengths": {tell: func(x *exchange) {
			x.wire("206 P", ranged(x), "Content-Length: 1\r\n", length(len(x.right())), x.right())
		}, want: eio},
		"no-length":           {tell: func(x *exchange) { x.wire("206 P", ranged(x), "\r\n", x.right()) }},
		"chunked":             {tell: header("Content-Length", "")},
		"chunked-and-more":    {tell: func(x *exchange) { x.answer(append(bytes.Clone(x.right()), 1, 2, 3), "Content-Length", "") }, want: eio},
		"chunked-and-less":    {tell: func(x *exchange) { x.answer(x.right()[:len(x.right())-1], "Content-Length", "") }, want: eio},
		"chunked-without-end": {tell: func(x *exchange) { x.wire("206 P", ranged(x), "Transfer-Encoding: chunked\r\n\r\n", chunk(x.right())) }, want: eio},
		"endless": {tell: func(x *exchange) {
			x.answer(x.right(), "Content-Length", "")
			x.forever(strings.Repeat("more", 1000), 0)
		}, want: eio},
		"followed-by-rubbish": {tell: func(x *exchange) { x.wire("206 P", ranged(x), length(len(x.right())), x.right(), "rubbish\r\n\r\n") }},
		"endless-header":      {tell: func(x *exchange) { x.wire("206 P", strings.Repeat("X-More: "+strings.Repeat("x", 1000)+"\r\n", 5000)) }, want: eio},
		"endless-continue": {tell: func(x *exchange) {
			x.wire("100 Continue", "\r\n", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 1000))
		}, want: eio},
		"no-http": {tell: func(x *exchange) { x.wire("\x00\xff") }, want: eio},

		// Versions.
		"other-version": {tell: header("ETag", `"other"`), want: estale},
		"no-version":    {tell: header("ETag", "", "Last-Modified", ""), want: eio},
		"weak-version":  {tell: func(x *exchange) { x.answer(x.right(), "ETag", "W/"+x.tag) }, want: estale},

		// Time.
		"silent": {tell: func(x *exchange) { <-x.r.Context().Done() }, want: eio},
		"stalls": {tell: func(x *exchange) {
			x.headers("Content-Range", x.truth(), "Content-Length", strconv.Itoa(len(x.right())))
			x.w.WriteHeader(http.StatusPartialContent)
			_, _ = x.w.Write(x.right()[:1000]) // they may have hung up
			_ = http.NewResponseController(x.w).Flush()
			<-x.r.Context().Done()
		}, want: eio},
		"drips": {tell: func(x *exchange) {
			x.headers("Content-Range", x.truth(), "Content-Length", strconv.Itoa(len(x.right())))
			x.w.WriteHeader(http.StatusPartialContent)
			for _, c := range x.right() {
				_, _ = x.w.Write([]byte{c}) // they may have hung up
				if http.NewResponseController(x.w).Flush() != nil || x.r.Context().Err() != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}, want: eio},
		"a-byte-each": {tell: func(x *exchange) { x.wire("206 P", ranged(x), length(len(x.right())), x.right()[:1]) }, want: eio},
	}
}

// TestLiesAboutBytes has a server tell every lie about a file of its own, to readers of a mount. No reader sees a byte that
// is not the file's: it gets the right ones, or an error. Nothing of a lie stays: when the server is honest again, all
// bytes are right, in a mount that is there and in a new one on the same cache, which is sound.
func TestLiesAboutBytes(t *testing.T) {
	blackbox.NeedFUSE(t)
	for _, name := range []string{"s3", "gs", "az", "http"} {
		for kind, patience := range map[string]time.Duration{"tried": hasty, "once": patient} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				told := lies()
				maps.DeleteFunc(told, func(_ string, l lie) bool {
					once := l.once || !errors.Is(l.want, syscall.EIO)
					return l.web && name != "http" || once != (kind == "once")
				})
				tellAll(t, makerOf(name), told, patience)
			})
		}
	}
}

func tellAll(t *testing.T, liarOf maker, told map[string]lie, patience time.Duration) {
	files := map[string][]byte{}
	for name := range told {
		files[name] = origintest.Data(300_000+len(name), name[0])
	}
	l := liarOf(t, files, func(x *exchange) bool { told[x.name].tell(x); return true }, nil)
	cached := suite.NewDir(t)
	flags := []string{"--cache-dir", cached, "--cache-segment", "1MiB", "--connections", "128", "--patience"}
	m := mount(t, l.source(), "", append(flags, patience.String())...)
	var wg sync.WaitGroup
	for name, lie := range told {
		wg.Go(func() {
			if err := readThrough(m.Path(name), files[name]); !errors.Is(err, lie.want) {
				t.Errorf("%s: %v, want %v", name, err, lie.want)
			}
		})
	}
	wg.Wait()
	l.honest.Store(true)
	again := mount(t, l.source(), "", append(flags, patient.String())...)
	mounts := []*mounted{again}
	if patience == patient { // and no machine is too slow for it
		mounts = append(mounts, m)
	}
	for _, m := range mounts {
		for _, name := range slices.Sorted(maps.Keys(l.files)) {
			if err := readThrough(m.Path(name), l.files[name]); err != nil {
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

// maker makes a liar of some kind.
type maker func(t testing.TB, files map[string][]byte, read, list func(x *exchange) bool) *liar

func makerOf(kind string) maker {
	switch kind {
	case "gs":
		return newGSLiar
	case "az":
		return newAzureLiar
	}
	return func(t testing.TB, files map[string][]byte, read, list func(x *exchange) bool) *liar {
		return newLiar(t, kind == "s3", files, read, list)
	}
}

// errOtherBytes is what no lie may lead to.
var errOtherBytes = errors.New("other bytes than the file's")

// readThrough reads a file to its end or an error, and compares all that came.
func readThrough(path string, want []byte) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	got := make([]byte, len(want)+1)
	n, err := io.ReadFull(f, got)
	switch {
	case !bytes.Equal(got[:n], want[:min(n, len(want))]):
		return fmt.Errorf("%w: within %d", errOtherBytes, n)
	case n == len(want) && errors.Is(err, io.ErrUnexpectedEOF):
		return nil
	case n != len(want) && (err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)):
		return fmt.Errorf("%w: it ends after %d of %d", errOtherBytes, n, len(want))
	}
	return err
}
