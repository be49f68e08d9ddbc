package tokens

import (
	"net/http"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
)

// Transports are the ways to the servers of a source.
type Transports struct {
	Servers http.RoundTripper // to the source's own, and to those that give out tokens
	Machine http.RoundTripper // to services of this machine, by no proxy
}

// Guarded makes the ways of a transport that go past a guard.
func Guarded(t *http.Transport, guard *fetch.Guard) Transports {
	direct := t.Clone()
	direct.Proxy = nil
	return Transports{guard.Transport(t), guard.Transport(direct)}
}

// Client asks the source's own servers, with credentials: it follows no redirect.
func (t Transports) Client() *http.Client {
	return &http.Client{Transport: trace.Transport(t.Servers), CheckRedirect: Stay}
}

// Close ends idle connections.
func (t Transports) Close() error {
	for _, way := range []http.RoundTripper{t.Servers, t.Machine} {
		(&http.Client{Transport: way}).CloseIdleConnections()
	}
	return nil
}
