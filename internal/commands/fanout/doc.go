// Package fanout says how long many nodes take to read one dataset from one origin, through caches that stand before it.
//
//	rows, err := fanout.Build(ctx, fanout.Cluster{Nodes: 100, Size: 2e12, Origin: 1.25e9, Cache: 2e9, Node: 1.5e9})
//
// Every node reads everything once. An object is cut into shares of 64 MiB, each of one cache, as cache/spread does. The first request
// for a piece has the cache bring it from the origin; the others wait for that. Units: bytes, seconds, bytes per second.
//
// # Calculation
//
// Without caches the origin sends N times the dataset. With C of them it sends it once, and each cache N/C times. So the last node is
// done after the longest of
//
//	S / node           the node itself
//	S / origin         with caches; without them N x S / origin
//	N x S / (C x cache)
//
// # Simulation
//
// The calculation takes all caches to be busy all the time. They are not where nodes read in the same order: a node has 128 MiB under
// way, which is two or three shares, so nodes in step ask two or three caches at a time. Simulate moves pieces of 8 MiB through queues as
// events: each node, cache and the origin does one piece at a time, in the order of arrival. It has nodes in step, none of which is more
// than 128 MiB ahead of the last, as ranks that wait for each other; and nodes that each begin elsewhere, as loaders that shuffle. A part of
// the dataset is simulated; of nodes that begin elsewhere 64, with their part of the caches.
//
// Not in it: latency, since many pieces are under way; the switches between nodes; failures.
package fanout
