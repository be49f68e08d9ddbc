package store

// stream is a reader that goes through a file in order.
type stream struct {
	from  int64 // where it began
	next  int64 // where it will read next
	read  int64 // bytes that it has read since
	ahead int64 // bytes to fetch ahead of it
}

const (
	maxStreams = 4       // of a file
	tolerance  = 1 << 20 // bytes that a sequential reader may skip or go back, since the kernel's readahead reorders
	proof      = 3 << 20 // bytes: a reader that has gone so far in order goes on. The kernel cuts a large read at random into several in order
)

// ahead gives how many bytes to fetch beyond a read of [off, end), most at most: none for the first and for those at
// random. A reader that began at the file's beginning gets twice as many each time that it goes on where it was. One that
// began elsewhere has to go on for a while first, and gets no more than four times the bytes that it has read.
func (f *file) ahead(off, end, most int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, st := range f.streams {
		if off < st.next-tolerance || off > st.next+tolerance {
			continue
		}
		st.advance(off, end, most)
		copy(f.streams[1:i+1], f.streams[:i])
		f.streams[0] = st
		return st.ahead
	}
	f.step(off)
	if len(f.streams) < maxStreams {
		f.streams = append(f.streams, stream{})
	}
	copy(f.streams[1:], f.streams)
	f.streams[0] = stream{from: off, next: end, read: end - off}
	return 0
}

func (st *stream) advance(off, end, most int64) {
	st.read += end - off
	if end <= st.next {
		return
	}
	st.next = end
	wanted, span := max(4*(end-off), 2*st.ahead), st.next-st.from
	switch {
	case st.read < span/2: // it skips more than it reads
		st.ahead = 0
	case st.from < tolerance:
		st.ahead = min(most, wanted)
	case span > proof:
		st.ahead = min(most, wanted, 4*st.read)
	}
}

// step notes a read that goes on with no stream. f.mu is held.
func (f *file) step(off int64) {
	if d := off - f.last; d == f.stride {
		f.strides++
	} else {
		f.stride, f.strides = d, 0
	}
	f.last = off
}

// strided gives the distance of reads that come at equal ones, 0 where they do not.
func (f *file) strided() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.strides < 2 {
		return 0
	}
	return f.stride
}
