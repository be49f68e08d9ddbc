package kv

// charge names a slot of a tier that a user holds. A user is charged once for each slot, even if several of the user's pins hold it. So a user whose
// whole share is pinned can still read these blocks: each read pins its block again.
type charge struct {
	uid  uint32
	slot uint32
}

// charge books a hold of a slot for a user. It fails where the user's share has no room. The namespace's lock is held.
func (s *Store) charge(uid uint32, t *tier, n uint32) bool {
	if t.charged[charge{uid, n}] > 0 {
		if !s.again.Reserve(uid, 1) {
			return false
		}
		t.charged[charge{uid, n}]++
		return true
	}
	if !s.held.Reserve(uid, t.slotBytes) {
		return false
	}
	if !s.count.Reserve(uid, 1) {
		s.held.Book(uid, -t.slotBytes)
		return false
	}
	t.charged[charge{uid, n}] = 1
	return true
}

// book is charge for a hold that the daemon before has granted. The namespace's lock is held.
func (s *Store) book(uid uint32, t *tier, n uint32) {
	c := charge{uid, n}
	if t.charged[c]++; t.charged[c] > 1 {
		s.again.Book(uid, 1)
		return
	}
	s.held.Book(uid, t.slotBytes)
	s.count.Book(uid, 1)
}

// uncharge ends a charge. The namespace's lock is held.
func (s *Store) uncharge(uid uint32, t *tier, n uint32) {
	c := charge{uid, n}
	if t.charged[c]--; t.charged[c] > 0 {
		s.again.Book(uid, -1)
		return
	}
	delete(t.charged, c)
	s.held.Book(uid, -t.slotBytes)
	s.count.Book(uid, -1)
}
