package shares

import "testing"

// Users of the tests.
const (
	greedy uint32 = 1000
	modest uint32 = 2000
)

// fill has a user take as much as it gets, and returns how much that is.
func fill(s *Shares, uid uint32) (n int64) {
	for s.Reserve(uid, 1) {
		n++
	}
	return n
}

func TestSharesLeaveSomethingForOthers(t *testing.T) {
	s := New(1024, 1000, 4)
	s.me = 0
	for i, want := range []int64{512, 256, 128, 64, 32, 16, 8, 4, 4, 4, 4} { // in any case the last of them
		if got := fill(s, greedy+uint32(i)); got != want {
			t.Errorf("user %d gets %d of what is left, want %d", i, got, want)
		}
	}
	if got := fill(s, 0); got != 1000 {
		t.Errorf("the daemon's own user gets %d", got)
	}
	if s.Fit(greedy, 1) || !s.Fit(modest+100, 4) || s.Fit(modest+100, 5) {
		t.Error("fit says what take does not do")
	}
	if got := s.Booked(); got != 1032+1000 {
		t.Errorf("%d are taken", got)
	}
	for uid, n := range s.of {
		s.Book(uid, -n)
	}
	if s.Booked() != 0 || s.used != 0 || len(s.of) != 0 {
		t.Errorf("%d of %d users are left when all is given back", s.Booked(), len(s.of))
	}
}
