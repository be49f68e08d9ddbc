package s3origin

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// strict stands between the transport and minio-go, which reads bodies to their end, and believes an answer by its status
// alone. It asks for plain bytes, and refuses answers that are none to their request.
type strict struct{ http.RoundTripper }

// mostBody bounds bodies that are read whole: errors, credentials, where a bucket lies. That of a listing has a bound of its
// own, and those of objects are read as far as was asked for.
const mostBody = 1 << 20

// RoundTrip implements [http.RoundTripper].
func (s strict) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context()) // a transport must not change its argument
	q.Header.Set("Accept-Encoding", "identity")
	walked, _ := q.Context().Value(pagesKey{}).(*fetch.Pages)
	if query := q.URL.Query(); walked == nil || !query.Has("delimiter") {
		walked = nil // it asks for credentials, or where the bucket is
	} else if err := walked.Ask(query.Get("continuation-token") + "\x00" + query.Get("marker")); err != nil {
		return nil, err
	}
	res, err := s.RoundTripper.RoundTrip(q)
	if err != nil {
		return nil, err
	}
	ranged := q.Header.Get("Range") != ""
	ok := res.StatusCode == http.StatusOK || (ranged && res.StatusCode == http.StatusPartialContent) ||
		(q.Method == http.MethodDelete && res.StatusCode == http.StatusNoContent)
	if !ok && res.StatusCode/100 == 2 {
		_ = res.Body.Close() // it is no answer
		return nil, fmt.Errorf("%w: it answers %.80q", fetch.ErrLie, res.Status)
	}
	if to, ok := q.Context().Value(answerKey{}).(**http.Response); ok {
		*to = res
	}
	switch {
	case res.StatusCode/100 == 2 && ranged:
		return res, nil // which the fetch client compares
	case res.StatusCode/100 == 2:
		if err := fetch.Unencoded(res.Header); err != nil {
			_ = res.Body.Close() // it is not the answer to the request
			return nil, err
		}
	}
	if walked != nil && res.StatusCode == http.StatusOK {
		res.Body = &page{ReadCloser: res.Body, pages: walked}
	} else {
		most, _ := q.Context().Value(wholeKey{}).(int64)
		res.Body = &bounded{res.Body, max(most, mostBody)}
	}
	return res, nil
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (s strict) CloseIdleConnections() {
	if c, ok := s.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// answerKey is the key of where a request's context wants the answer as it came, which minio-go does not give.
type answerKey struct{}

func withAnswer(ctx context.Context, to **http.Response) context.Context {
	return context.WithValue(ctx, answerKey{}, to)
}

// wholeKey is the key of how many bytes of an answer a request's context wants at most, where that is more than mostBody.
type wholeKey struct{}

func withWhole(ctx context.Context, most int64) context.Context {
	return context.WithValue(ctx, wholeKey{}, most)
}

// bounded is a body that fails when it has more than left bytes.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: the server's answer has more bytes than any has", fs.ErrInvalid)
	}
	return n, err
}
