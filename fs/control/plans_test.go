package control

import (
	"bytes"
	"testing"
)

// A save that a kill has cut short, at any byte, leaves the one before.
func TestPlansAreSavedWhole(t *testing.T) {
	b, err := newPlansBook()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.file.Close() }() // it is in memory
	if got := (&plansBook{file: b.file}).load(); got != nil {
		t.Errorf("an empty book has %q", got)
	}
	for _, p := range []string{"the first", "the second one", "the third"} {
		if err := b.save([]byte(p)); err != nil {
			t.Fatal(err)
		}
		if got := (&plansBook{file: b.file}).load(); string(got) != p {
			t.Errorf("%q came back, want %q", got, p)
		}
	}
	whole := make([]byte, plansHead+len("the third"))
	if _, err := b.file.ReadAt(whole, b.place(b.turn)); err != nil {
		t.Fatal(err)
	}
	for cut := range whole {
		if _, err := b.file.WriteAt(append(bytes.Clone(whole[:cut]), whole[cut]^1), b.place(b.turn)); err != nil {
			t.Fatal(err)
		}
		if got := (&plansBook{file: b.file}).load(); string(got) != "the second one" {
			t.Errorf("byte %d is changed: %q came back", cut, got)
		}
		if _, err := b.file.WriteAt(whole, b.place(b.turn)); err != nil {
			t.Fatal(err)
		}
	}
}
