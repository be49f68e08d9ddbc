package kv_test

import (
	"fmt"
	"os"
)

// childVerb is the environment variable that makes the test binary a client of its own.
const childVerb = "HBMFS_TEST_KV_CHILD"

// runChild is a client in a process of its own.
func runChild(verb string) int {
	fmt.Fprintf(os.Stderr, "unknown verb %q\n", verb)
	return 2
}
