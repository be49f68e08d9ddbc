package fetch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// ErrLie says that an answer contradicts its request, or itself. No byte of it is used, and another attempt follows.
var ErrLie = errors.New("the server contradicts itself")

// ErrNoRanges says that a server sends whole files only, as Python's http.server does. It wraps [fs.ErrInvalid].
var ErrNoRanges = fmt.Errorf("%w: the server does not serve ranges", fs.ErrInvalid)

// Answer is an origin's answer to a [Getter]: of status 200 or 206, its body not read yet.
type Answer struct {
	*http.Response
	Version string // of the object, as the listing has it

	// Ended is told once how the request ended: nil where its bytes came as asked, or nobody wanted more. It may be nil.
	Ended func(error)
}

// Check compares the answer with a request for the n bytes of o from off on. [Client] does it with every answer.
func (r *Answer) Check(o *layout.Object, off, n int64) error {
	return check(ask{object: o, off: off, n: n}, r)
}

// check compares an answer with its request. A body may be written into a cache and outlive its server. So neither
// status, encoding, range, total, version nor length may contradict the request.
func check(a ask, r *Answer) error {
	if err := Unencoded(r.Header); err != nil {
		return err
	}
	switch whole := a.off == 0 && a.n == a.object.Size; {
	case r.StatusCode == http.StatusPartialContent:
		if err := checkRange(a, r.Header); err != nil {
			return err
		}
	case r.StatusCode != http.StatusOK:
		return fmt.Errorf("%w: it answers %.80q to a request for bytes", ErrLie, r.Status)
	case !whole || r.ContentLength < 0: // some servers answer so for a whole file, and say its length
		return fmt.Errorf("%w (it answers 200 for bytes %d to %d): use one that does, such as nginx, or download the dataset", ErrNoRanges, a.off, a.off+a.n)
	}
	if r.Version == "" && a.object.Version != "" {
		return fmt.Errorf("%w: its answer has no version, and its listing had", ErrLie)
	}
	if r.Version != a.object.Version {
		return fmt.Errorf("it is version %.300s, listed as %s: %w", r.Version, a.object.Version, cache.ErrChanged)
	}
	if r.ContentLength >= 0 && r.ContentLength != a.n {
		return fmt.Errorf("%w: its answer for %d bytes has %d", ErrLie, a.n, r.ContentLength)
	}
	return nil
}

// checkRange compares the place of a partial answer with its request.
func checkRange(a ask, h http.Header) error {
	if kind, _, _ := mime.ParseMediaType(h.Get("Content-Type")); strings.HasPrefix(kind, "multipart/byteranges") {
		return fmt.Errorf("%w: it answers for one range with several (%.80q)", ErrLie, kind)
	}
	got := said(h, "Content-Range")
	if got == fmt.Sprintf("bytes %d-%d/%d", a.off, a.off+a.n-1, a.object.Size) {
		return nil
	}
	_, total, _ := strings.Cut(got, "/")
	if size, err := strconv.ParseInt(total, 10, 64); err == nil && size != a.object.Size {
		return fmt.Errorf("its size is %d, listed as %d: %w", size, a.object.Size, cache.ErrChanged)
	}
	return fmt.Errorf("%w: it answers for bytes %d to %d with %.80q", ErrLie, a.off, a.off+a.n, got)
}

// Unencoded refuses an answer that comes in an encoding, as from servers that compress. Its bytes are not the object's,
// and its length and range may be of either.
func Unencoded(h http.Header) error {
	for code := range strings.SplitSeq(said(h, "Content-Encoding"), ",") {
		switch strings.ToLower(strings.TrimSpace(code)) {
		case "", "identity", "aws-chunked": // the last is how an object came to S3: some clients have it stored
		default:
			return fmt.Errorf("%w: the server answers in the encoding %.80q, and only plain bytes were asked for: have it serve files as they are stored", fs.ErrInvalid, code)
		}
	}
	return nil
}

// said gives a header, all of its lines.
func said(h http.Header, name string) string { return strings.Join(h.Values(name), ", ") }

// next reads the next part of the body into p. The last part counts only when nothing follows it; of a body whose length
// nobody said, no part counts before that.
func (r *request) next(p []byte, last bool) (n int, err error) {
	n, err = r.readFull(p)
	switch {
	case n == len(p) && last:
		if err = r.ended(); err != nil {
			n = 0
		}
	case n == len(p):
		err = nil
	case r.blind:
		n = 0
	}
	return n, err
}

// ended makes sure that the body has no more bytes than were asked for.
func (r *request) ended() error {
	n, err := r.readFull(make([]byte, 1))
	switch {
	case n > 0:
		return fmt.Errorf("%w: it sends more bytes than were asked for", ErrLie)
	case errors.Is(err, io.EOF):
		r.err = nil // as it should be
		return nil
	}
	return err
}

// Do makes a request. Its errors leave the address out, whose query may be a secret.
func Do(client *http.Client, q *http.Request) (*http.Response, error) {
	res, err := client.Do(q)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the server hung up: %w", err)
	}
	return res, err
}
