package order

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Permutation is the Feistel permutation of python/hbmfs/permutation.py, of the numbers below N.
type Permutation struct {
	N, Rows, Columns uint64
	Keys             []uint64 // of the rounds
}

// Apply replaces each number of list, which is below N, by the one in its place.
func (p *Permutation) Apply(list []uint64) {
	eachPart(len(list), func(from, to int) {
		for i := from; i < to; i++ {
			k := p.turn(list[i])
			for k >= p.N {
				k = p.turn(k)
			}
			list[i] = k
		}
	})
}

// turn encrypts a number below Rows times Columns once.
func (p *Permutation) turn(k uint64) uint64 {
	y, x := k/p.Rows, k%p.Rows
	for round, key := range p.Keys {
		if round%2 == 0 {
			x = moved(x, y+key, p.Rows)
		} else {
			y = moved(y, x+key, p.Columns)
		}
	}
	return y*p.Rows + x
}

// moved adds a hash of other to k, modulo size.
func moved(k, other, size uint64) uint64 {
	other *= 0xBF58476D1CE4E5B9
	other ^= other >> 29
	other *= 0x94D049BB133111EB
	if k += other >> 32 * size >> 32; k >= size {
		k -= size
	}
	return k
}

// atOnce is how many parts are worked on at once, of so many elements at least.
const atOnce, leastOfPart = 8, 512

// eachPart calls fn for parts of n elements, at once. A panic of one is the caller's, who may have changed the arrays meanwhile.
func eachPart(n int, fn func(from, to int)) {
	step := max(leastOfPart, (n+atOnce-1)/atOnce)
	var wg sync.WaitGroup
	var wrong atomic.Value
	for from := 0; from < n; from += step {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					wrong.CompareAndSwap(nil, fmt.Sprint(p))
				}
			}()
			fn(from, min(from+step, n))
		})
	}
	wg.Wait()
	if p := wrong.Load(); p != nil {
		panic(p)
	}
}
