package layout

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// maxHeaders bounds the bytes of headers that the shards of a volume hold while they are parsed, all together. The
// largest header of any format fits. But many shards are resolved at once, and a sparse file claims a large header for
// nothing.
const maxHeaders = 256 << 20

// maxPlaces bounds the places of row groups that a volume keeps, one for each column that is decoded: 48 bytes each. Beside them each such column of a file
// takes about 1 kB, and every row group 8 bytes.
const maxPlaces = 1 << 24

// places counts those that are kept.
type places struct{ kept atomic.Int64 }

func (p *places) take(n int64) error {
	for {
		was := p.kept.Load()
		if was+n > maxPlaces {
			return absent("the columns have more than %d row groups, all together: write larger row groups, or mount fewer files", maxPlaces)
		}
		if p.kept.CompareAndSwap(was, was+n) {
			return nil
		}
	}
}

func (p *places) giveBack(n int64) { p.kept.Add(-n) }

// headerBudget is the bytes that are left of maxHeaders. Its zero value, which tests of one file use, has no bound.
type headerBudget struct{ left *semaphore.Weighted }

func newHeaderBudget() headerBudget { return headerBudget{semaphore.NewWeighted(maxHeaders)} }

// take waits until n bytes may be held. A caller that holds some must give them back before it takes more. The error is
// ctx's.
func (b headerBudget) take(ctx context.Context, n int64) (giveBack func(), err error) {
	if b.left == nil {
		return func() {}, nil
	}
	n = min(n, maxHeaders)
	if err := b.left.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return func() { b.left.Release(n) }, nil
}
