package kv

import (
	"errors"
	"fmt"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Memory is consecutive bytes of the host, or of the Store's GPU.
type Memory = device.Bytes

// Block is a key, and the memory that its bytes come from or go to: one part behind the other.
type Block struct {
	Key   []byte // 1 to 64 bytes
	Parts []Memory

	size int64
	hbm  bool // a part is memory of the GPU
}

// Outcome is the result of one block of a request.
type Outcome int32

// Outcomes. libhbmfs.h has the same numbers.
const (
	Done      Outcome = 0  // it was stored, loaded, found or removed
	Missing   Outcome = 1  // it is not there
	Present   Outcome = 2  // of a put: it was there before
	Busy      Outcome = 3  // of a put: another request is writing it
	NoRoom    Outcome = 4  // of a put: nothing can be evicted now
	OverLimit Outcome = 5  // this user holds as much as one user may
	Length    Outcome = 6  // of a get: the block has another length than the memory
	Damaged   Outcome = 7  // of a get: its bytes are not those that were stored
	Lost      Outcome = 8  // of a put: its reservation ended with the daemon, each time
	Failed    Outcome = 9  // its tier could not be read or written
	Undone    Outcome = 10 // the request ended before its turn
)

// String names an outcome.
func (o Outcome) String() string {
	names := [...]string{"done", "missing", "present", "busy", "no room", "over the limit", "of another length", "damaged", "lost", "failed", "undone"}
	if o < 0 || int(o) >= len(names) {
		return fmt.Sprintf("outcome %d", int32(o))
	}
	return names[o]
}

// Errors of requests that make no sense.
var (
	ErrBlock  = errors.New("no block of this store")
	ErrMemory = errors.New("not usable as memory of a block")
)

// check measures blocks and asks CUDA about memory of the GPU: a wrong address would end its context.
func (s *Store) check(blocks []Block) error {
	var known driver.Allocation
	for i := range blocks {
		b := &blocks[i]
		if len(b.Key) == 0 || len(b.Key) > control.MaxKVKey {
			return fmt.Errorf("%w: its key has %d bytes, and a key has 1 to %d", ErrBlock, len(b.Key), control.MaxKVKey)
		}
		b.size, b.hbm = 0, false
		for j := range b.Parts {
			m := &b.Parts[j]
			if err := s.device.HasBytes(m, &known); err != nil {
				return fmt.Errorf("%w: %w", ErrMemory, err)
			}
			b.size += m.Size()
			b.hbm = b.hbm || m.Host == nil && m.N > 0
		}
		if b.size <= 0 || b.size > s.blockBytes {
			return fmt.Errorf("%w: it has %d bytes, and a block of this namespace has 1 to %d", ErrBlock, b.size, s.blockBytes)
		}
	}
	return nil
}

// pieces gives the memory of bytes [at, at+n) of a block.
func (b *Block) pieces(at, n int64) (list []Memory) {
	for i := range b.Parts {
		size := b.Parts[i].Size()
		if at < size && n > 0 {
			m := min(n, size-at)
			list = append(list, b.Parts[i].Part(at, m))
			at, n = at+m, n-m
		}
		at -= size
		at = max(at, 0)
	}
	return list
}
