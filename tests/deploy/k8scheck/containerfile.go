package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// containerfileVerb parses a Containerfile. A warning of BuildKit is an error.
func containerfileVerb(out io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	tree, err := parser.Parse(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var problems error
	warn := func(rule, _, _, message string, at []parser.Range) {
		problems = errors.Join(problems, fmt.Errorf("%s:%d: %s: %s", path, at[0].Start.Line, rule, message))
	}
	for _, w := range tree.Warnings {
		warn("parser", "", "", w.Short, []parser.Range{*w.Location})
	}
	stages, _, err := instructions.Parse(tree.AST, linter.New(&linter.Config{Warn: warn}))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, s := range stages {
		if base := s.BaseName; base != "scratch" && !strings.Contains(base, ":") {
			problems = errors.Join(problems, fmt.Errorf("%s: stage %s is from %s, which has no version", path, s.Name, base))
		}
		fmt.Fprintf(out, "%s: stage %q from %s, %d instructions\n", path, s.Name, s.BaseName, len(s.Commands))
	}
	return problems
}
