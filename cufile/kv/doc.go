// Package kv stores blocks of a GPU or of the host in a KV volume, and brings them back.
//
// A [Store] is one namespace of a volume (hbmfs kv mount), for one device. [Store.Put] and [Store.Get] take many blocks at once, each
// of which is a list of memory, and give a [Request]:
//
//	s, err := kv.Open(ctx, "/mnt/kv", "llama-8b-fp8", kv.Options{Device: 0, BlockBytes: 2 << 20, Create: true, Write: true})
//	q, err := s.Put([]kv.Block{{Key: key, Parts: []kv.Memory{{HBM: pointer, N: 2 << 20}}}}, &stream)
//	result, err := q.Result()                 // result.Outcomes[0] is Done, or Present
//
// The daemon gives slots, and the bytes go past it. In the memory tier they go straight between the GPU and the slot, whose region is
// registered with CUDA when a slot of it first comes ("mapped"). Otherwise they go through pinned memory ("staged"). On the host they
// are copied by several threads ("host").
//
// A Store outlives its daemon. A request goes on with the next one. It gives bytes of a get out only once the daemon that
// answers has said that their pin held all the while.
//
// Pitfalls. Memory of a request must stay until Done is closed. A block that is not there, or has no room, is an [Outcome] and not an error.
package kv
