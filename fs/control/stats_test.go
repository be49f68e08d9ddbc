package control

import "testing"

// TestReadersOfOthersAreBounded has a user who claims to be many.
func TestReadersOfOthersAreBounded(t *testing.T) {
	c := New(Options{})
	count := func(uid, want uint32) {
		t.Helper()
		if n := c.countReaders(uid); n != want {
			t.Errorf("user %d is told of %d readers, want %d", uid, n, want)
		}
	}
	count(1, 0)
	var crowd []*usage
	for number := range uint32(200) {
		crowd = append(crowd, c.join("crowd", readerID{2, number + 1}))
	}
	u := c.join("one", readerID{1, 7})
	c.join("the same", readerID{1, 7})
	c.join("another", readerID{1, 8})
	c.join("not a reader", readerID{1, 0})
	count(1, 2+readersOfOthers)
	count(2, 200+2)
	count(3, 2+readersOfOthers)
	for number, u := range crowd {
		c.leave(u, readerID{2, uint32(number) + 1})
	}
	c.leave(u, readerID{1, 8})
	count(1, 1)
}
