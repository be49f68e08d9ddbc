// Package fetch turns single attempts at a byte range of a remote object into reads that bring every byte or say why
// not.
//
// An origin implements [Getter], one request and no more. A [Client] adds the rest, which every origin needs. It bounds
// the requests under way, and retries with backoff and jitter where the last attempt broke off. It ends attempts that
// stall, and makes a second request where the first is slow to answer.
//
//	c := fetch.New(origin, fetch.Options{Connections: 16})
//	err := c.Fetch(ctx, object, off, n, func(p []byte) error { return write(p) })
//
// Nothing is tried again that cannot change by it: a denied object, and one that is no longer the listed version. An
// origin that cannot be reached is never taken for one whose objects are gone: it is [ErrUnreachable] once
// [Options.Patience] is over.
package fetch
