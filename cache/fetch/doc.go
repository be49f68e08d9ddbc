// Package fetch turns single attempts at a byte range of a remote object into reads that bring every byte or say why
// not.
//
// An origin implements [Getter], one request and no more. A [Client] adds what every origin needs: a bound on the
// requests under way, retries with backoff and jitter that go on where the last attempt broke off, an end to attempts
// that stall, and a second request where the first is slow to answer.
//
//	c := fetch.New(origin, fetch.Options{Connections: 16})
//	err := c.Fetch(ctx, object, off, n, func(p []byte) error { return write(p) })
//
// What cannot change by trying again is not tried again: a denied object, and one that is no longer the listed version.
// An origin that cannot be reached is never taken for one whose objects are gone: it is [ErrUnreachable] once
// [Options.Patience] is over.
package fetch
