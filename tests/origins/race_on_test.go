//go:build race

package origins_test

// raceDetector says that this test runs under the race detector, and so should the daemon.
const raceDetector = true
