package layout

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// maxKept bounds the decoded bytes that a volume keeps. Beside that it keeps one value of more than half of it, so that a large page
// does not push out the values that are needed to read on in it.
const maxKept = 256 << 20

// keptEntryBytes is how many bytes an entry takes beside its value.
const keptEntryBytes = 512

// kept has recently decoded values, the most recently used first. Of several readers that want the same one decodes
// it.
type kept struct {
	mu      sync.Mutex // guards the fields below
	entries map[keptKey]*keptEntry
	recent  *list.List // of *keptEntry that are there
	bytes   int64      // of those
	large   *keptEntry // beside them
}

// keptKey names a kept value: a part of one shard.
type keptKey struct {
	of   any
	part string
	at   int64
}

type keptEntry struct {
	key   keptKey
	done  chan struct{}
	value any // valid once done is closed, as err
	err   error
	bytes int64
	place *list.Element // among the recent ones
}

func newKept() *kept { return &kept{entries: map[keptKey]*keptEntry{}, recent: list.New()} }

// get returns the value of decode, which also says how many bytes it takes. An error is not kept.
func (k *kept) get(ctx context.Context, key keptKey, decode func(ctx context.Context) (any, int64, error)) (any, error) {
	for {
		k.mu.Lock()
		e, known := k.entries[key]
		if !known {
			e = &keptEntry{key: key, done: make(chan struct{})}
			k.entries[key] = e
		} else if e.place != nil {
			k.recent.MoveToFront(e.place)
		}
		k.mu.Unlock()
		if !known {
			e.value, e.bytes, e.err = decode(ctx)
			e.bytes += keptEntryBytes
			k.add(e)
			close(e.done)
			return e.value, e.err
		}
		select {
		case <-e.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if e.err == nil || ctx.Err() == nil && !errors.Is(e.err, context.Canceled) && !errors.Is(e.err, context.DeadlineExceeded) {
			return e.value, e.err
		} // else another reader has given up, and this one has not
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// add keeps an entry that is decoded, and forgets others for it.
func (k *kept) add(e *keptEntry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.err != nil {
		delete(k.entries, e.key)
		return
	}
	if e.bytes > maxKept/2 {
		if k.large != nil {
			delete(k.entries, k.large.key)
		}
		k.large = e
		return
	}
	e.place = k.recent.PushFront(e)
	k.bytes += e.bytes
	for k.bytes > maxKept {
		last := k.recent.Remove(k.recent.Back()).(*keptEntry)
		delete(k.entries, last.key)
		k.bytes -= last.bytes
	}
}
