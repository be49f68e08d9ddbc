//go:build !race

package csi_test

const raceDetector = false
