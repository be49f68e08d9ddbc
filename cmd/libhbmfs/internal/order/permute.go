package order

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// Permutation is the Feistel permutation of python/hbmfs/data/permutation.py, of the numbers below N.
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

// permutationOf is the permutation of the numbers below n by some keys; without keys they stay as they are.
func permutationOf(n uint64, keys []uint64) *Permutation {
	p := &Permutation{N: n, Keys: keys}
	p.Rows = uint64(math.Sqrt(float64(n)))
	for p.Rows*p.Rows < n {
		p.Rows++
	}
	for p.Rows > 1 && (p.Rows-1)*(p.Rows-1) >= n {
		p.Rows--
	}
	p.Columns = (n + p.Rows - 1) / max(p.Rows, 1)
	return p
}

// fill gives the numbers in consecutive places, without a division for each.
func (p *Permutation) fill(list []uint64, first uint64) {
	y, x := first/max(p.Rows, 1), first%max(p.Rows, 1)
	for i := range list {
		k := p.encrypted(y, x)
		for k >= p.N {
			k = p.turn(k)
		}
		list[i] = k
		if x++; x == p.Rows {
			y, x = y+1, 0
		}
	}
}

// turn encrypts a number below Rows times Columns once.
func (p *Permutation) turn(k uint64) uint64 {
	return p.encrypted(k/p.Rows, k%p.Rows)
}

func (p *Permutation) encrypted(y, x uint64) uint64 {
	keys, rows, columns := p.Keys, p.Rows, p.Columns
	for len(keys) > 1 {
		x = moved(x, y+keys[0], rows)
		y = moved(y, x+keys[1], columns)
		keys = keys[2:]
	}
	if len(keys) > 0 {
		x = moved(x, y+keys[0], rows)
	}
	return y*rows + x
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
	part := func(from, to int) {
		defer func() {
			if p := recover(); p != nil {
				wrong.CompareAndSwap(nil, fmt.Sprint(p))
			}
		}()
		fn(from, to)
	}
	last := max(n-1, 0) / step * step
	for from := 0; from < last; from += step {
		wg.Go(func() { part(from, from+step) })
	}
	part(last, n)
	wg.Wait()
	if p := wrong.Load(); p != nil {
		panic(p)
	}
}
