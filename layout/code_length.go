package layout

import "math"

// codeLengths measures how well bytes fit to elements of a width. It codes the bytes at each place of an element by an adaptive
// histogram of their own, and counts the bits. Two histograms code u16 ids in fewer bits than one does, because few upper bytes
// are in use. They save nothing on u8, and a second histogram takes bits to learn.
//
// A histogram of n bytes, c of each value, takes log2(G(n+256a)/G(256a)) - sum(log2(G(c+a)/G(a))) bits, where G is the gamma
// function (the Krichevsky-Trofimov estimator). Each histogram takes the weight a that suits it best, and 2 bits to name it.
type codeLengths [len(priors{})]struct {
	once [headSize + 1]float64 // log2(G(c+a)/G(a)), by c
	all  [headSize + 1]float64 // log2(G(n+256a)/G(256a)), by n
}

// priors are the weights. Small ones suit bytes that are constant, large ones suit noise.
type priors [4]float64

func newCodeLengths() *codeLengths {
	var k codeLengths
	for i, a := range (priors{1. / 512, 1. / 16, 2, 64}) {
		for n := range headSize {
			k[i].once[n+1] = k[i].once[n] + math.Log2(float64(n)+a)
			k[i].all[n+1] = k[i].all[n] + math.Log2(float64(n)+256*a)
		}
	}
	return &k
}

// bits is the length of the code of head, headSize bytes at most, with a histogram for each of width places.
func (k *codeLengths) bits(head []byte, width int) float64 {
	total := 0.0
	for place := range width {
		var counts [256]int
		n := 0
		for i := place; i < len(head); i += width {
			counts[head[i]]++
			n++
		}
		best := math.Inf(1)
		for i := range k {
			bits := k[i].all[n]
			for _, c := range counts {
				bits -= k[i].once[c]
			}
			best = min(best, bits)
		}
		total += best + 2
	}
	return total
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
	best, least, saved := 0, 8*float64(len(head)), 0.0 // noise
	for width := 1; width <= 8; width *= 2 {
		if bits := k.bits(head, width); bits < least {
			best, least, saved = width, bits, least-bits
		}
	}
	if saved < wellFounded {
		return 0
	}
	return best
}
