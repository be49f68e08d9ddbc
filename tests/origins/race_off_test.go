//go:build !race

package origins_test

const raceDetector = false
