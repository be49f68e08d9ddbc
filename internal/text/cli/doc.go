// Package cli holds the words that programs exchange with people: mistakes of a command line, suggestions for mistyped words, the version, and text
// that a terminal can show.
package cli
