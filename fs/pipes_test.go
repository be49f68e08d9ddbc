package fs

import (
	"bytes"
	"os"
	"strconv"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hanwen/go-fuse/v2/splice"
	"golang.org/x/sys/unix"
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

// No process that is started inherits what package splice opens: keepers and daemons start each other for years.
func TestPipesAreNotInherited(t *testing.T) {
	var p pipes
	pair := p.get(1)
	if pair == nil {
		t.Skip("needs pipes that can grow")
	}
	p.put(pair)
	defer p.close()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		number, _ := strconv.Atoi(fd.Name()) // a number
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err != nil || number <= unix.Stderr {
			continue // what listed them has been closed
		} else if flags, err := unix.FcntlInt(uintptr(number), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("a process that is started gets descriptor %d, %s", number, to)
		}
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
