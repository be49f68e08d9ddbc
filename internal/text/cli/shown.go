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

// IsRemote reports whether a source is an address and not a path.
func IsRemote(source string) bool {
	scheme, _, found := strings.Cut(source, "://")
	return found && scheme != "" && !strings.ContainsAny(scheme, "/.")
}
