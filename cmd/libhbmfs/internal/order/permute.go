package order

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// Permutation is the Feistel permutation of python/hbmfs/data/permutation.py, of the numbers below n.
type Permutation struct {
	n, rows, columns uint64
	keys             []uint64 // of the rounds
}

// at gives the number in a place, which is below n.
func (p *Permutation) at(place uint64) uint64 {
	k := p.turn(place)
	for k >= p.n {
		k = p.turn(k)
	}
	return k
}

// permutationOf is the permutation of the numbers below n by some keys; without keys they stay as they are.
func permutationOf(n uint64, keys []uint64) *Permutation {
	p := &Permutation{n: n, keys: keys}
	p.rows = uint64(math.Sqrt(float64(n)))
	for p.rows*p.rows < n {
		p.rows++
	}
	for p.rows > 1 && (p.rows-1)*(p.rows-1) >= n {
		p.rows--
	}
	p.columns = (n + p.rows - 1) / max(p.rows, 1)
	return p
}

// fill gives the numbers in consecutive places, without a division for each.
func (p *Permutation) fill(list []uint64, first uint64) {
	y, x := first/max(p.rows, 1), first%max(p.rows, 1)
	for i := range list {
		k := p.encrypted(y, x)
		for k >= p.n {
			k = p.turn(k)
		}
		list[i] = k
		if x++; x == p.rows {
			y, x = y+1, 0
		}
	}
}

// turn encrypts a number below Rows times Columns once.
func (p *Permutation) turn(k uint64) uint64 {
	return p.encrypted(k/p.rows, k%p.rows)
}

func (p *Permutation) encrypted(y, x uint64) uint64 {
	keys, rows, columns := p.keys, p.rows, p.columns
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
