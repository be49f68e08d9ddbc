// Package spread reads an origin through caches that stand before it, so that many nodes cost it one read.
//
//	o, err := spread.Open(origin, []string{"http://cache-0:9000", "http://cache-1:9000"}, fetch.Options{})
//	listing, err := o.List(ctx) // of the origin itself; its objects are read through the caches
//
// An object is cut into shares of 64 MiB. Rendezvous hashing of the object's name and the share gives the order in which the
// caches are asked, the same on every node. So each cache holds its part, and where one goes, only its part moves. The origin
// comes last, and answers for objects that no cache gives.
//
// A cache may be slow, gone, old or wrong. Its answers are compared with the listing as the origin's are, and no byte of a
// wrong one is taken. A cache that does not answer is passed over for a second, and for longer each time, up to a minute. One
// that lacks an object, or has another version, is passed over for this object. One whose last ten objects were all of
// another version is left out for ten minutes. Only the checksums of the
// data itself show bytes that a cache changed under the right version.
package spread
