package fs

import (
	"os"
	"sync"
)

// shares divide something that there is only so much of among users. Who takes some leaves at least as much free as they
// then have: alone a user has half of it, the next one a quarter, and there is always something left for one who comes
// later. The user who runs the daemon, most often root, has as much again apart, which nobody else can take.
type shares struct {
	me    uint32
	limit int64 // of all users together
	each  int64 // the most that one may have
	least int64 // that one may have in any case; its user is bounded otherwise

	mu   sync.Mutex // guards the fields below
	used int64      // by others than me
	of   map[uint32]int64
}

func newShares(limit, each, least int64) *shares {
	return &shares{me: uint32(os.Geteuid()), limit: limit, each: each, least: least, of: map[uint32]int64{}}
}

// reserve books n for a user, and reports whether there was so much for it.
func (s *shares) reserve(uid uint32, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fits(uid, n) {
		return false
	}
	s.add(uid, n)
	return true
}

// fit reports whether reserve would.
func (s *shares) fit(uid uint32, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fits(uid, n)
}

func (s *shares) fits(uid uint32, n int64) bool {
	has := s.of[uid] + n
	return has <= s.each && (uid == s.me || has <= s.least || has <= s.limit-s.used-n)
}

// book books n for a user, as much as it is: fit has said that there is room. What is given back is negative.
func (s *shares) book(uid uint32, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(uid, n)
}

func (s *shares) add(uid uint32, n int64) {
	if uid != s.me {
		s.used += n
	}
	if s.of[uid] += n; s.of[uid] == 0 {
		delete(s.of, uid)
	}
}

// booked returns how much all have together.
func (s *shares) booked() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used + s.of[s.me]
}
