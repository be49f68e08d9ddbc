package manpage

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// leastColumns is how many columns a text gets at least beside its term. Where the terminal has fewer, it breaks lines itself.
const leastColumns = 24

// reflow breaks the paragraphs of a text anew, and long texts of tables in their column. Examples stay as they are.
func reflow(text string, columns int) string {
	var out []string
	for _, b := range blocks(text) {
		if !b.pre {
			out = append(out, wrap(b.text, 0, columns))
			continue
		}
		var lines []string
		for line := range strings.SplitSeq(b.text, "\n") {
			lines = append(lines, wrapRow("  "+line, columns))
		}
		out = append(out, strings.Join(lines, "\n"))
	}
	return strings.Join(out, "\n\n")
}

// row is a line of a table: a term and a text, with two spaces or more between them.
var row = regexp.MustCompile(`^(  \S+(?: \S+)*  +)(\S.*)$`)

// wrapRow breaks the text of a row that is too wide.
func wrapRow(line string, columns int) string {
	at := row.FindStringSubmatch(line)
	if at == nil || utf8.RuneCountInString(line) <= columns {
		return line
	}
	return at[1] + wrap(at[2], utf8.RuneCountInString(at[1]), columns)
}

// wrap breaks a text that begins at a column into lines that all begin there. 0 columns leave it as it is.
func wrap(text string, at, columns int) string {
	if columns == 0 || columns-at < leastColumns {
		return text
	}
	var b strings.Builder
	used := 0
	for i, word := range strings.Fields(text) {
		wide := utf8.RuneCountInString(word)
		switch {
		case i > 0 && at+used+1+wide > columns:
			b.WriteString("\n" + strings.Repeat(" ", at))
			used = 0
		case i > 0:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += wide
	}
	return b.String()
}
