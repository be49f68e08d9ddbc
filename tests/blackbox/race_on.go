//go:build race

package blackbox

// Race says that this program runs under the race detector, and so should the programs that it tests.
const Race = true
