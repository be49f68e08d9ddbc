// Package suggest finds the words that a mistyped one may have meant.
package suggest

import (
	"slices"
	"strings"
)

// Like gives the words, at most three, that text is the beginning or a misspelling of: those that are nearest.
func Like(text string, words []string) []string {
	text = strings.ToLower(text)
	var near []string
	nearest := max(1, len(text)/3)
	for _, w := range words {
		d := distance(text, strings.ToLower(w))
		if len(text) >= 2 && strings.HasPrefix(strings.ToLower(w), text) {
			d = min(d, 1)
		}
		if d < nearest {
			nearest, near = d, nil
		}
		if d == nearest {
			near = append(near, w)
		}
	}
	slices.Sort(near)
	return near[:min(len(near), 3)]
}

// Did gives the question that follows an error, ": did you mean --json?" for one, and "" where no word is near. Each word is
// written with the prefix.
func Did(text, prefix string, words []string) string {
	near := Like(text, words)
	if len(near) == 0 {
		return ""
	}
	said := prefix + near[0]
	for i, w := range near[1:] {
		said += map[bool]string{true: " or ", false: ", "}[i == len(near)-2] + prefix + w
	}
	return ": did you mean " + said + "?"
}

// distance counts the letters to insert, delete, replace, or exchange with the next, from a to b (optimal string alignment).
func distance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)} // two before, before, this one
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := range len(a) {
		this := rows[2]
		this[0] = i + 1
		for j := range len(b) {
			replace := rows[1][j]
			if a[i] != b[j] {
				replace++
			}
			this[j+1] = min(rows[1][j+1]+1, this[j]+1, replace)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				this[j+1] = min(this[j+1], rows[0][j-1]+1)
			}
		}
		rows[0], rows[1], rows[2] = rows[1], rows[2], rows[0]
	}
	return rows[1][len(b)]
}
