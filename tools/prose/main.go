// Prose reads the project's Markdown and the comments of its Go and Python files, and enforces the rules of prose in CONTRIBUTING.md.
//
//	prose README.md docs              # a line for each sentence that breaks a rule, and exit status 1
//	prose --count README.md docs cmd  # how many sentences break each rule, in Markdown and in comments
//
// A sentence may have 25 words. "What", "whatever" and "whoever" belong in questions. Markdown names no commits.
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// finding is a sentence that breaks a rule.
type finding struct {
	rule, path string
	line       int
	text       string
}

// rules are checked for each sentence. A rule returns how often a sentence breaks it.
var rules = []struct {
	name, says string
	breaks     func(sentence) int
}{
	{"what", "name the thing instead of saying \"what\" or \"whoever\"", func(s sentence) int {
		if strings.HasSuffix(s.text, "?") {
			return 0
		}
		return len(whatWords.FindAllString(s.text, -1))
	}},
	{"long", fmt.Sprintf("at most %d words a sentence", longest), func(s sentence) int {
		if s.words > longest {
			return 1
		}
		return 0
	}},
	{"commit", "users do not look up commits", func(s sentence) int {
		if s.comment {
			return 0
		}
		n := 0
		for _, word := range hexWords.FindAllString(s.text, -1) {
			if strings.ContainsAny(word, "0123456789") && strings.ContainsAny(word, "abcdef") {
				n++
			}
		}
		return n
	}},
}

const longest = 25

var (
	whatWords = regexp.MustCompile(`(?i)\b(what|whatever|whoever|whomever)\b|(?:^|[;,:] )(?-i:Who)\b`)
	hexWords  = regexp.MustCompile(`\b[0-9a-f]{7,40}\b`)
)

func main() {
	count := flag.Bool("count", false, "print how many sentences break each rule, and succeed")
	flag.Parse()
	bad, err := run(os.Stdout, *count, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	if bad > 0 && !*count {
		fmt.Fprintf(os.Stderr, "prose: %d findings\n", bad)
		os.Exit(1)
	}
}

// run checks the files and folders of paths. It returns the number of findings.
func run(out *os.File, count bool, paths []string) (int, error) {
	var found []finding
	words := map[string]int{}
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				if err == nil && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "dist") {
					return filepath.SkipDir
				}
				return err
			}
			read, comment := readers[filepath.Ext(path)], filepath.Ext(path) != ".md"
			if read == nil {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			blocks, err := read(path, string(text))
			if err != nil {
				return err
			}
			for _, s := range sentences(blocks) {
				s.comment = comment
				words[path] += s.words
				for _, rule := range rules {
					for range rule.breaks(s) {
						found = append(found, finding{rule.name, path, s.line, s.text})
					}
				}
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	if count {
		printCounts(out, found, words)
		return len(found), nil
	}
	for _, f := range found {
		i := slices.IndexFunc(rules, func(r struct {
			name, says string
			breaks     func(sentence) int
		}) bool {
			return r.name == f.rule
		})
		fmt.Fprintf(out, "%s:%d: %s: %s\n", f.path, f.line, rules[i].says, f.text)
	}
	return len(found), nil
}

// printCounts writes a table with a line for each part of the project.
func printCounts(out *os.File, found []finding, words map[string]int) {
	part := func(path string) string {
		dir, file := filepath.Split(filepath.Clean(path))
		if filepath.Ext(file) == ".md" {
			return path
		}
		return strings.TrimSuffix(dir, "/")
	}
	counts, total := map[string]map[string]int{}, map[string]map[string]int{}
	add := func(m map[string]map[string]int, key, rule string, n int) {
		if m[key] == nil {
			m[key] = map[string]int{}
		}
		m[key][rule] += n
	}
	kind := func(path string) string {
		if filepath.Ext(path) == ".md" {
			return "Markdown"
		}
		return "comments"
	}
	for _, f := range found {
		add(counts, part(f.path), f.rule, 1)
		add(total, kind(f.path), f.rule, 1)
	}
	for path, n := range words {
		add(counts, part(path), "words", n)
		add(total, kind(path), "words", n)
	}
	line := func(name string, n map[string]int) {
		fmt.Fprintf(out, "%-44s %6d words %5d what %5d long %3d commit\n", name, n["words"], n["what"], n["long"], n["commit"])
	}
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		line(name, counts[name])
	}
	for _, name := range []string{"Markdown", "comments"} {
		line("all "+name, total[name])
	}
}
