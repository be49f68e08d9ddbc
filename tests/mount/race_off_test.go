//go:build !race

package mount_test

const raceDetector = false
