//go:build cgo

package main

import "testing"

func TestAPanicIsAnError(t *testing.T) {
	if got := code(answer(nil, func() error { panic("no") })); got != codeInternal {
		t.Errorf("a panic gives %d, want %d", got, codeInternal)
	}
}
