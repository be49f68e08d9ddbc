package cli

import (
	"strings"
	"unicode"
)

// Printable makes text harmless for a terminal: names of readers, paths and reasons are made by others.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
