package fs

import (
	"os"
	"sync"
)

// shares divide a limited thing among users. A user gets more as long as as much stays free as that user then has: alone
// half, beside such a user a quarter. So some is always left for the next user. The user who runs the daemon, most often
// root, has as much apart.
type shares struct {
	me    uint32
	limit int64 // of all users together
	each  int64 // the most that one may have
	least int64 // that each may have in any case: users are bounded otherwise

	mu   sync.Mutex // guards the fields below
	used int64      // by others than me
	of   map[uint32]int64
}

func newShares(limit, each, least int64) *shares {
	return &shares{me: uint32(os.Geteuid()), limit: limit, each: each, least: least, of: map[uint32]int64{}}
}

// reserve books n for a user, and reports whether there was room.
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

// book books n for a user, after fit has said that there is room. A negative n gives back.
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

// booked returns the sum of all users.
func (s *shares) booked() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used + s.of[s.me]
}
