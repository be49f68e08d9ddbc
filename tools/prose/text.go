package main

import (
	"go/parser"
	"go/token"
	"regexp"
	"strings"
)

// block is a paragraph, an item of a list, a cell of a table or a comment, as one line of text.
type block struct {
	line int
	text string
}

// sentence is part of a block.
type sentence struct {
	line    int
	text    string
	words   int
	comment bool
}

var readers = map[string]func(path, text string) ([]block, error){".md": markdown, ".go": goComments, ".py": pythonComments}

var (
	item     = regexp.MustCompile(`^\s*(?:[-*+]|[0-9]+\.)\s+`)
	link     = regexp.MustCompile(`!?\[([^]]*)\]\([^)]*\)`)
	code     = regexp.MustCompile("``[^`]+``|`[^`]+`")
	emphasis = regexp.MustCompile(`\*\*|__`)
	word     = regexp.MustCompile(`[\pL\pN]`)
	end      = regexp.MustCompile(`[.!?]["')*]*(?:\s+|$)`)
	message  = regexp.MustCompile(`^\*\*[A-Z_]+\*\* \(`) // the layout of a message is no sentence
	short    = regexp.MustCompile(`(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|No|[A-Z])\.\s*$`)
)

// markdown leaves out code, the addresses of links, and headings.
func markdown(_, text string) ([]block, error) {
	var blocks []block
	var open *block
	flush := func() {
		if open != nil {
			blocks = append(blocks, *open)
			open = nil
		}
	}
	fence, before, list := "", true, false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "":
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
			continue
		case strings.HasPrefix(trimmed, "```"):
			flush()
			fence = "```"
			continue
		case trimmed == "":
			flush()
			before = true
			continue
		case strings.HasPrefix(line, "    ") && before && !list, strings.HasPrefix(line, "        ") && before:
			continue // indented code
		case strings.HasPrefix(trimmed, "#"), strings.HasPrefix(trimmed, "<"), strings.HasPrefix(trimmed, "|-"), strings.HasPrefix(trimmed, "!!!"):
			flush()
			list = false
			continue
		case strings.HasPrefix(trimmed, "|"):
			flush()
			for _, cell := range strings.Split(strings.Trim(trimmed, "|"), "|") {
				blocks = append(blocks, block{i + 1, strings.TrimSpace(cell)})
			}
			before = false
			continue
		}
		if at := item.FindString(line); at != "" {
			flush()
			list, trimmed = true, line[len(at):]
		} else if before && !strings.HasPrefix(line, " ") {
			list = false
		}
		before = false
		if open == nil {
			open = &block{line: i + 1}
		}
		open.text += " " + trimmed
	}
	flush()
	return blocks, nil
}

// goComments leaves out the lines of a comment that are indented, and directives.
func goComments(path, text string) ([]block, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var blocks []block
	for _, group := range file.Comments {
		blocks = append(blocks, paragraphs(group.Text(), files.Position(group.Pos()).Line)...)
	}
	return blocks, nil
}

// pythonComments has comments and docstrings.
func pythonComments(_, text string) ([]block, error) {
	var blocks []block
	var comment []string
	start, quote := 0, ""
	flush := func() {
		blocks = append(blocks, paragraphs(strings.Join(comment, "\n"), start)...)
		comment = nil
	}
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case quote != "":
			body, closed := strings.CutSuffix(trimmed, quote)
			comment = append(comment, body)
			if closed {
				quote = ""
				flush()
			}
		case strings.HasPrefix(trimmed, `"""`), strings.HasPrefix(trimmed, `r"""`):
			flush()
			start = i + 1
			body := strings.TrimPrefix(strings.TrimPrefix(trimmed, "r"), `"""`)
			if inner, closed := strings.CutSuffix(body, `"""`); closed {
				comment = append(comment, inner)
				flush()
				continue
			}
			comment, quote = append(comment, body), `"""`
		case strings.HasPrefix(trimmed, "# "):
			if comment == nil {
				start = i + 1
			}
			comment = append(comment, trimmed[2:])
		default:
			flush()
			if _, after, ok := strings.Cut(line, "  # "); ok {
				blocks = append(blocks, block{i + 1, after})
			}
		}
	}
	flush()
	return blocks, nil
}

// paragraphs divides the text of a comment at empty lines, and leaves out indented lines.
func paragraphs(text string, line int) []block {
	var blocks []block
	var open *block
	for i, l := range strings.Split(text, "\n") {
		if strings.TrimSpace(l) == "" || strings.HasPrefix(l, "\t") || strings.HasPrefix(l, "    ") {
			open = nil
			continue
		}
		if open == nil {
			blocks = append(blocks, block{line: line + i})
			open = &blocks[len(blocks)-1]
		}
		open.text += " " + strings.TrimSpace(l)
	}
	return blocks
}

// sentences divides blocks at full stops, question marks and exclamation marks.
func sentences(blocks []block) []sentence {
	var all []sentence
	for _, b := range blocks {
		if message.MatchString(strings.TrimSpace(b.text)) {
			continue
		}
		text := link.ReplaceAllString(b.text, "$1")
		text = code.ReplaceAllString(text, "code") // a single letter and a full stop would be an initial
		text = emphasis.ReplaceAllString(text, "")
		start := 0
		add := func(to int) {
			s := strings.TrimSpace(text[start:to])
			start = to
			n := 0
			for _, w := range strings.Fields(s) {
				if word.MatchString(w) {
					n++
				}
			}
			if n > 0 {
				all = append(all, sentence{line: b.line, text: s, words: n})
			}
		}
		for _, at := range end.FindAllStringIndex(text, -1) {
			if !short.MatchString(text[:at[0]+1]) {
				add(at[1])
			}
		}
		add(len(text))
	}
	return all
}
