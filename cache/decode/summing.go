package decode

import (
	"hash"
	"runtime"
)

const (
	sumBuffer  = 256 << 10 // bytes that are handed to a summing goroutine at a time
	sumBuffers = 4
)

// summing hashes bytes in a goroutine of its own, so that a hash as slow as decoding, such as sha1, takes another
// processor. It belongs to one goroutine.
type summing struct {
	sum  hash.Hash
	full chan []byte // nil where the caller hashes
	free chan []byte
	done chan struct{}
	now  []byte
}

// newSumming begins to sum for a digest, nil for none. The caller closes it.
func newSumming(d digest) *summing {
	if d.make == nil {
		return nil
	}
	s := &summing{sum: d.make()}
	if d.slow() && runtime.GOMAXPROCS(0) > 1 {
		s.full, s.free, s.done = make(chan []byte, sumBuffers), make(chan []byte, sumBuffers), make(chan struct{})
		for range sumBuffers {
			s.free <- nil
		}
		go s.run()
	}
	return s
}

func (s *summing) run() {
	defer close(s.done)
	for p := range s.full {
		s.sum.Write(p) // a hash never fails
		s.free <- p[:0]
	}
}

// add sums p, which may be changed afterwards.
func (s *summing) add(p []byte) {
	switch {
	case s == nil:
		return
	case s.full == nil:
		s.sum.Write(p) // a hash never fails
		return
	}
	for len(p) > 0 {
		if s.now == nil {
			if s.now = <-s.free; s.now == nil {
				s.now = make([]byte, 0, sumBuffer)
			}
		}
		n := min(len(p), sumBuffer-len(s.now))
		if s.now, p = append(s.now, p[:n]...), p[n:]; len(s.now) == sumBuffer {
			s.full <- s.now
			s.now = nil
		}
	}
}

// close ends the goroutine, once all bytes are summed.
func (s *summing) close() {
	if s == nil || s.full == nil {
		return
	}
	if len(s.now) > 0 {
		s.full <- s.now
	}
	close(s.full)
	<-s.done
	s.full, s.now = nil, nil
}
