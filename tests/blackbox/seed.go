package blackbox

import (
	"os"
	"strconv"
	"testing"
)

// Rounds is how much a test does: few in `make test`, and all with HBMFS_TEST_LONG, as the soak targets set it.
func Rounds(few, all int) int {
	if os.Getenv("HBMFS_TEST_LONG") != "" {
		return all
	}
	return few
}

// Seed gives the seed of a random test: HBMFS_SEED, or 1. So `make test` does the same each time, and the soak targets pass new seeds.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(1)
	if text := os.Getenv("HBMFS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("HBMFS_SEED: %v", err)
		}
	}
	t.Logf("HBMFS_SEED=%d", seed)
	return seed
}
