package layout

import (
	"math"
	"slices"
	"sync"
)

// codeLengths measures how well bytes fit to elements of a width. It codes the bytes at each place of an element by an adaptive
// histogram of their own, and counts the bits. Two histograms code u16 ids in fewer bits than one does, because few upper bytes
// are in use. They save nothing on u8, and a second histogram takes bits to learn.
//
// A histogram of n bytes, c of each value, takes log2(G(n+256a)/G(256a)) - sum(log2(G(c+a)/G(a))) bits, where G is the gamma
// function (the Krichevsky-Trofimov estimator). Each histogram takes the weight a that suits it best, and 2 bits to name it.
type codeLengths struct {
	once [headSize + 1]lengths // log2(G(c+a)/G(a)), by c
	all  [headSize + 1]lengths // log2(G(n+256a)/G(256a)), by n
}

// lengths are bits by weight. Small weights suit bytes that are constant, large ones suit noise.
type lengths [4]float64

// codes makes the code lengths once. That takes milliseconds, and each Index would pay them.
//
//nolint:gochecknoglobals // a table
var codes = sync.OnceValue(newCodeLengths)

func newCodeLengths() *codeLengths {
	k := &codeLengths{}
	for i, a := range (lengths{1. / 512, 1. / 16, 2, 64}) {
		for n := range headSize {
			k.once[n+1][i] = k.once[n][i] + math.Log(float64(n)+a)*math.Log2E
			k.all[n+1][i] = k.all[n][i] + math.Log(float64(n)+256*a)*math.Log2E
		}
	}
	return k
}

// histogram counts the bytes at a place of each element.
type histogram struct {
	of [256]uint16
	n  int
}

// bits is the length of the code of a histogram's bytes.
func (k *codeLengths) bits(h *histogram) float64 {
	bits := k.all[h.n]
	for _, c := range &h.of {
		if c != 0 {
			for i, once := range &k.once[c] {
				bits[i] -= once
			}
		}
	}
	return slices.Min(bits[:]) + 2
}

// wellFounded is how many bits a width must save over each smaller one. By chance, one sample in 2^32 saves so many.
const wellFounded = 32

// width returns the bytes of an element, 1, 2, 4 or 8, and 0 where the bytes do not show it, as those of noise and padding.
func (k *codeLengths) width(head []byte) int {
	head = head[:min(len(head), headSize)]
	padding := 0
	for padding < len(head) && head[padding] == head[0] {
		padding++
	}
	head = head[padding&^7:]
	var places [8]histogram
	for i, b := range head {
		places[i&7].of[b]++
		places[i&7].n++
	}
	var total [4]float64 // by the logarithm of the width
	for i := 3; i >= 0; i-- {
		width := 1 << i
		for place := range width {
			h := &places[place]
			if i < 3 { // the places of the next width, two by two
				other := &places[place+width]
				for b, c := range &other.of {
					h.of[b] += c
				}
				h.n += other.n
			}
			total[i] += k.bits(h)
		}
	}
	best, least, saved := 0, 8*float64(len(head)), 0.0 // noise
	for i, bits := range total {
		if bits < least {
			best, least, saved = 1<<i, bits, least-bits
		}
	}
	if saved < wellFounded {
		return 0
	}
	return best
}
