package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

func TestListingsGoForward(t *testing.T) {
	p := NewPages()
	for n := range mostEmpty + 2 {
		p.found = n%2 == 0
		if err := p.Ask(fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Ask("7"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a token that was there: %v", err)
	}
	var err error
	for n := 0; n <= mostEmpty+1 && err == nil; n++ {
		err = p.Ask(fmt.Sprint("empty", n))
	}
	if !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("pages without keys: %v", err)
	}
}
