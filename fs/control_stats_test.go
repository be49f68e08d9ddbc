package fs

import "testing"

// TestReadersOfOthersAreBounded has a user who claims to be many.
func TestReadersOfOthersAreBounded(t *testing.T) {
	c := newChannel()
	count := func(uid, want uint32) {
		t.Helper()
		if n := c.countReaders(uid); n != want {
			t.Errorf("user %d is told of %d readers, want %d", uid, n, want)
		}
	}
	count(1, 0)
	var crowd []*usage
	for number := range uint32(200) {
		crowd = append(crowd, c.meet("crowd", readerID{2, number + 1}))
	}
	u := c.meet("one", readerID{1, 7})
	c.meet("the same", readerID{1, 7})
	c.meet("another", readerID{1, 8})
	c.meet("not a reader", readerID{1, 0})
	count(1, 2+readersOfOthers)
	count(2, 200+2)
	count(3, 2+readersOfOthers)
	for number, u := range crowd {
		c.part(u, readerID{2, uint32(number) + 1})
	}
	c.part(u, readerID{1, 8})
	count(1, 1)
}
