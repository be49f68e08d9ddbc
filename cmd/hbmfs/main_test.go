package main

import (
	"os"
	"strings"
	"testing"
)

// TestMain has processes that a command starts do their work: they would run all tests otherwise, beside a mount of somebody else's.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		main()
	}
	m.Run()
}
