package fs

import (
	"bytes"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hanwen/go-fuse/v2/splice"
)

// More reads than there are pipes for are copied, and no pipe is made for them or lost.
func TestPipesAreAsManyAsWereMade(t *testing.T) {
	before := splice.Total()
	var p pipes
	var taken []*splice.Pair
	for pair := p.get(maxRead); pair != nil; pair = p.get(maxRead) {
		taken = append(taken, pair)
	}
	if len(taken) != p.made/2 || splice.Total() > before+p.made {
		t.Errorf("%d pipes are taken of %d, and there are %d more than before", len(taken), p.made, splice.Total()-before)
	}
	if len(taken) == 0 {
		t.Skip("needs pipes that can grow")
	}
	if p.most < maxRead {
		t.Errorf("no more than %d bytes are spliced", p.most)
	}
	if _, err := taken[0].Write([]byte("left over")); err != nil {
		t.Fatal(err)
	}
	for _, pair := range taken {
		p.put(pair)
	}
	pair := p.get(1)
	if pair == nil || p.get(p.most+1) != nil {
		t.Error("after all came back one is not to be had, or one of any size is")
	}
	p.put(pair)
	p.close()
	if splice.Total() > before {
		t.Errorf("%d pipes are left", splice.Total()-before)
	}
	if p.get(1) != nil {
		// A pipe after the end would never be closed.
		t.Error("a pipe is to be had after the end")
	}
}

// Where go-fuse lost bytes of a reply on the way, the read is an error: the kernel would take less for the file's end.
func TestPipedBytesAreCompleteOrAnError(t *testing.T) {
	want := bytes.Repeat([]byte("tokens"), 10_000)
	for _, lost := range []int{0, 1, len(want)} {
		var p pipes
		pair := p.get(maxRead)
		if pair == nil {
			t.Skip("needs pipes that can grow")
		}
		r := &piped{&p, pair, len(want)}
		if n, err := pair.Write(want[lost:]); err != nil || n != len(want)-lost {
			t.Fatal(n, err)
		}
		got, status := r.Bytes(make([]byte, len(want)))
		if ok := status == fuse.OK && bytes.Equal(got, want); ok != (lost == 0) {
			t.Errorf("%d bytes are lost: %d bytes and %v", lost, len(got), status)
		}
		r.Done()
		p.close()
	}
}
