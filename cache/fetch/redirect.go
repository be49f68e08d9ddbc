package fetch

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"sync"
)

// Bounds of the addresses that servers redirect to.
const (
	mostAddress   = 8 << 10 // bytes
	mostAddresses = 10_000  // that are kept
)

// Discard ends an answer whose header says it all. The connection is used again where the rest is short.
func Discard(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // the rest is of no use
	_ = res.Body.Close()
}

// Redirected tells an answer that leads elsewhere.
func Redirected(res *http.Response) bool {
	return res.StatusCode/100 == 3 && res.StatusCode != http.StatusNotModified
}

// Next is the address that an answer redirects to. The answer is discarded.
func Next(res *http.Response) (*url.URL, error) {
	Discard(res)
	u, err := res.Location()
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || len(u.String()) > mostAddress {
		return nil, fmt.Errorf("%w: the server redirects to no address of a file", fs.ErrInvalid)
	}
	if res.Request.URL.Scheme == "https" && u.Scheme != "https" {
		return nil, fmt.Errorf("%w: the server redirects from https to http", fs.ErrInvalid)
	}
	return u, nil
}

// Addresses are signed addresses of a storage, by the version that lies there. The zero value has none. It is safe for concurrent use.
type Addresses struct {
	mu sync.Mutex
	at map[string]string
}

// Get is the address of a version, nil where none is known.
func (a *Addresses) Get(version string) *url.URL {
	a.mu.Lock()
	defer a.mu.Unlock()
	u, err := url.Parse(a.at[version])
	if err != nil || u.Host == "" {
		return nil
	}
	return u
}

// Keep remembers the address of a version, nil for none.
func (a *Addresses) Keep(version string, u *url.URL) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at == nil || len(a.at) >= mostAddresses {
		a.at = map[string]string{}
	}
	if delete(a.at, version); u != nil {
		a.at[version] = u.String()
	}
}

// Expired tells an answer of a storage to an address that it takes no more.
func Expired(res *http.Response) bool {
	switch res.StatusCode {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone:
		return true
	}
	return res.StatusCode/100 == 3
}
