package s3origin

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// rotation follows credentials that are replaced where they come from, before they say that they expire. Examples are a
// file that was written again, and a role that was given anew. Nobody is told of that; the server no longer takes the
// old ones.
type rotation struct {
	done atomic.Bool // the server has answered a request

	bare atomic.Int32 // answers of 400 that say no more, before done

	mu      sync.Mutex
	last    credentials.Value
	asked   time.Time // when the source of the credentials was asked because of a refusal
	changed time.Time // when it had others
}

// Requests that were signed before the change are refused after it, all within this time.
const (
	betweenAsking = time.Second
	afterChange   = time.Minute
)

// worked says that the server has answered.
func (r *rotation) worked(creds *credentials.Credentials) {
	if r.done.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, err := creds.GetWithContext(nil); err == nil {
		r.last = now
		r.done.Store(true)
	}
}

// unexplained tells an answer of 400 to a HEAD, which has no body that says why: S3 gives it where credentials have
// expired. Of a server that never answered otherwise, a few are believed: a port of https gives it to clients that speak
// http.
func (r *rotation) unexplained(res minio.ErrorResponse) bool {
	const believed = 5
	bare := res.StatusCode == http.StatusBadRequest && strings.HasPrefix(res.Code, "400") && res.Message == res.Code
	return bare && (r.done.Load() || r.bare.Add(1) <= believed)
}

// renew asks again where the credentials come from, and tells whether they have changed lately. If so, a refused
// request is worth another attempt. Credentials that never worked are not.
func (r *rotation) renew(creds *credentials.Credentials) bool {
	if !r.done.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.asked) >= betweenAsking {
		creds.Expire()
		now, err := creds.GetWithContext(nil)
		r.asked = time.Now()
		if err == nil && (now.AccessKeyID != r.last.AccessKeyID || now.SecretAccessKey != r.last.SecretAccessKey || now.SessionToken != r.last.SessionToken) {
			r.last, r.changed = now, r.asked
		}
	}
	return !r.changed.IsZero() && time.Since(r.changed) < afterChange
}
