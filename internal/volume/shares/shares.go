// Package shares divides a limited resource among users, so that no user takes the share of others.
package shares

import (
	"os"
	"sync"
)

// Shares divide a limited thing among users. A user gets more as long as as much stays free as that user then has: alone
// half, beside such a user a quarter. So some is always left for the next user. The user who runs the daemon, most often
// root, has as much apart.
type Shares struct {
	me    uint32
	limit int64 // of all users together
	each  int64 // the most that one may have
	least int64 // that each may have in any case: users are bounded otherwise

	mu   sync.Mutex // guards the fields below
	used int64      // by others than me
	of   map[uint32]int64
}

// New divides limit. A user gets at most each, and least in any case. The user of this process has as much apart.
func New(limit, each, least int64) *Shares {
	return &Shares{me: uint32(os.Geteuid()), limit: limit, each: each, least: least, of: map[uint32]int64{}}
}

// Reserve books n for a user, and reports whether there was room.
func (s *Shares) Reserve(uid uint32, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fits(uid, n) {
		return false
	}
	s.add(uid, n)
	return true
}

// Fit reports whether Reserve would.
func (s *Shares) Fit(uid uint32, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fits(uid, n)
}

func (s *Shares) fits(uid uint32, n int64) bool {
	has := s.of[uid] + n
	return has <= s.each && (uid == s.me || has <= s.least || has <= s.limit-s.used-n)
}

// Book books n for a user, after Fit has said that there is room. A negative n gives back.
func (s *Shares) Book(uid uint32, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(uid, n)
}

func (s *Shares) add(uid uint32, n int64) {
	if uid != s.me {
		s.used += n
	}
	if s.of[uid] += n; s.of[uid] == 0 {
		delete(s.of, uid)
	}
}

// Each is the most that one user may have.
func (s *Shares) Each() int64 { return s.each }

// Limit is the bound for all users together, beside the user of this process.
func (s *Shares) Limit() int64 { return s.limit }

// Of returns a user's part.
func (s *Shares) Of(uid uint32) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[uid]
}

// Booked returns the sum of all users.
func (s *Shares) Booked() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used + s.of[s.me]
}
