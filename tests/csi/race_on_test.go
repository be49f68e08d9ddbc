//go:build race

package csi_test

// raceDetector says that these tests, and so the programs that they build, run under the race detector.
const raceDetector = true
