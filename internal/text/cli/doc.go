// Package cli holds the texts between programs and people. These are mistakes of a command line, suggestions for mistyped words, the version, and
// text that a terminal can show.
package cli
