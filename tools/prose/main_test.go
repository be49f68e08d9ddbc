package main

import (
	"slices"
	"testing"
)

func TestRules(t *testing.T) {
	const long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty a b c d e f"
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"a.md", "The daemon answers. Does it say what it does?", nil},
		{"a.md", "What it says is true.", []string{"what"}},
		{"a.md", "```\nwhat\n```\n\n    what\n\n## What\n\n`what` and [a link](what.md).", nil},
		{"a.md", long + ".", []string{"long"}},
		{"a.md", "`a`. " + long[:len(long)-6] + ".", nil},
		{"a.md", "| a | what |\n|---|---|\n", []string{"what"}},
		{"a.md", "**FRAME** (8): what (8).", nil},
		{"a.md", "Since 1e67bb8 this holds, and 1234567 is a number.", []string{"commit"}},
		{"a.go", "package a\n\n// Run says\n// what it does.\n//\n//\twhat\nfunc Run() {}\n", []string{"what"}},
		{"a.py", "\"\"\"Says what.\"\"\"\nx = \"what\"  # whoever calls\n", []string{"what", "what"}},
	} {
		read := readers[c.name[1:]]
		blocks, err := read(c.name, c.text)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range sentences(blocks) {
			for _, rule := range rules {
				for range rule.breaks(s) {
					got = append(got, rule.name)
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %q: %v, want %v", c.name, c.text, got, c.want)
		}
	}
}
