package kv

// BlockBytes counts bytes of blocks, by path, and by the tier that they lay in or went to.
type BlockBytes struct {
	Mapped, Staged, Host int64
	Memory, Disk         int64
	Direct               int64 // of Disk, past the page cache
}

func (m *BlockBytes) add(o BlockBytes) {
	m.Mapped += o.Mapped
	m.Staged += o.Staged
	m.Host += o.Host
	m.Memory += o.Memory
	m.Disk += o.Disk
	m.Direct += o.Direct
}

// Stats count a Store's work since it was opened.
type Stats struct {
	Put, Get        BlockBytes
	Stored, Present int64  // blocks of puts that were stored; that were there before
	Refused         int64  // blocks of puts that were not stored
	Loaded, Missing int64  // blocks of gets
	Damaged         int64  // blocks of gets whose bytes did not match their sums
	Requests        int64  // under way
	Connections     int64  // to daemons, one after the other
	PinnedBytes     int64  // of the memory tier, registered with CUDA now
	Buffered        string // why blocks of the disk tier go through the page cache; empty where they do not
}

type counts struct {
	Stats
	connections int64
}

// Stats returns the counts so far.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.counts.Stats
	st.Requests, st.Connections = int64(len(s.requests)), s.counts.connections
	if s.now != nil {
		for _, t := range s.now.tiers {
			t.mu.Lock()
			st.PinnedBytes += t.pinned
			t.mu.Unlock()
			if t.disk != nil {
				st.Buffered = t.disk.Buffered()
			}
		}
	}
	return st
}

// account counts the outcomes of a request's blocks.
func (s *Store) account(q *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.counts
	for _, o := range q.result.Outcomes {
		switch {
		case q.kind == put && o == Done:
			c.Stored++
		case q.kind == put && o == Present:
			c.Present++
		case q.kind == put:
			c.Refused++
		case q.kind == get && o == Done:
			c.Loaded++
		case q.kind == get && o == Damaged:
			c.Damaged++
		case q.kind == get:
			c.Missing++
		}
	}
	switch q.kind {
	case put:
		c.Put.add(q.result.Moved)
	case get:
		c.Get.add(q.result.Moved)
	}
}
