// Package manpage writes the manual of a command: as help on a terminal, as a manual page, and as Markdown. All three come from
// the cobra command and a few tables, so that they cannot differ.
package manpage

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Item is a line of a table: an exit status, a file or a variable, with its meaning. It belongs to the named commands, or to
// all.
type Item struct {
	Term, Text string
	Of         []string
}

// Manual has the parts that commands do not say themselves.
type Manual struct {
	Version                  string
	Exit, Files, Environment []Item
}

// section is a table of one command.
type section struct {
	title string
	items []Item
}

func (m *Manual) sections(cmd *cobra.Command) (all []section) {
	if cmd.Name() == "completion" || cmd.HasParent() && cmd.Parent().Name() == "completion" {
		return nil // cobra's own
	}
	for _, s := range []section{{"Exit status", m.Exit}, {"Files", m.Files}, {"Environment", m.Environment}} {
		of := section{title: s.title}
		for _, i := range s.items {
			if !cmd.HasParent() && len(i.Of) > 0 {
				i.Text = strings.Join(i.Of, ", ") + ": " + i.Text
			}
			if i.of(cmd) {
				of.items = append(of.items, i)
			}
		}
		if len(of.items) > 0 {
			all = append(all, of)
		}
	}
	return all
}

// of tells whether an item is of a command. The first of all commands has all.
func (i *Item) of(cmd *cobra.Command) bool {
	path := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
	if len(i.Of) == 0 || !cmd.HasParent() {
		return true
	}
	for _, name := range i.Of {
		if path == name || strings.HasPrefix(path, name+" ") {
			return true
		}
	}
	return false
}

// Help is the text of --help, on a terminal of so many columns; 0 leaves lines as they were written.
func (m *Manual) Help(cmd *cobra.Command, columns int) string {
	var b strings.Builder
	about, usage := cmd.Long, cmd.UsageString()
	if about == "" {
		about = cmd.Short
	}
	if columns > 0 {
		about = reflow(about, columns)
	}
	if own := strings.TrimSpace(cmd.LocalFlags().FlagUsages()); own != "" {
		usage = strings.Replace(usage, own, strings.TrimSpace(flagHelp(cmd.LocalFlags(), columns)), 1)
	}
	fmt.Fprintf(&b, "%s\n\n%s", strings.TrimSpace(about), usage)
	for _, s := range m.sections(cmd) {
		if !cmd.HasParent() && s.title != "Exit status" {
			continue // the first screen is short
		}
		fmt.Fprintf(&b, "\n%s:\n", s.title)
		wide := 0
		for _, i := range s.items {
			wide = max(wide, len(i.Term))
		}
		below := columns > 0 && wide > columns/2 // the text would be a narrow column
		for _, i := range s.items {
			if below {
				fmt.Fprintf(&b, "  %s\n      %s\n", i.Term, wrap(i.Text, 6, columns))
				continue
			}
			fmt.Fprintf(&b, "  %-*s  %s\n", wide, i.Term, wrap(i.Text, wide+4, columns))
		}
	}
	return b.String()
}

// commands are cmd and all below it that are not hidden, cobra's help left out.
func commands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			all = append(all, commands(c)...)
		}
	}
	return all
}

// Write writes a page for each command into a directory.
func (m *Manual) Write(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range commands(root) {
		if err := os.WriteFile(filepath.Join(dir, pageName(c)+".1"), []byte(m.Page(c)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// usages are the lines of a synopsis.
func usages(cmd *cobra.Command) (lines []string) {
	add := func(c *cobra.Command) {
		for line := range strings.Lines(c.UseLine()) { // some commands have two ways
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if !cmd.HasSubCommands() {
		add(cmd)
		return lines
	}
	for _, c := range commands(cmd)[1:] {
		if c.Parent() == cmd {
			add(c)
		}
	}
	return lines
}

// block is a part of a text: a paragraph, or lines that stay as they are, which are those that begin with spaces.
type block struct {
	text string
	pre  bool
}

func blocks(text string) (all []block) {
	var lines []string
	pre := false
	end := func() {
		for len(lines) > 0 && lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		if len(lines) > 0 {
			all = append(all, block{strings.Join(lines, "\n"), pre})
		}
		lines = nil
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		switch is := strings.HasPrefix(line, "  "); {
		case line == "" && !pre:
			end()
			continue
		case line != "" && is != pre:
			end()
			pre = is
		}
		if len(lines) > 0 || line != "" {
			lines = append(lines, strings.TrimPrefix(line, "  "))
		}
	}
	end()
	return all
}

// see are the pages that a page leads to.
func see(cmd *cobra.Command) (names []string) {
	if cmd.HasParent() {
		names = append(names, pageName(cmd.Parent()))
	}
	for _, c := range commands(cmd)[1:] {
		if c.Parent() == cmd {
			names = append(names, pageName(c))
		}
	}
	return names
}

// Markdown writes all commands as one document.
func (m *Manual) Markdown(w io.Writer, root *cobra.Command) error {
	_, err := fmt.Fprintf(w, "# Commands\n\n`hbmfs man --markdown` writes this page from the texts of `--help`; the manual pages come from the same.\n")
	for _, c := range commands(root) {
		if err == nil && (len(m.sections(c)) > 0) {
			_, err = io.WriteString(w, m.markdown(c))
		}
	}
	return err
}

func (m *Manual) markdown(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n", cmd.CommandPath(), cmd.Short)
	for _, line := range usages(cmd) {
		fmt.Fprintf(&b, "    %s\n", line)
	}
	for _, p := range blocks(cmd.Long) {
		b.WriteByte('\n')
		for line := range strings.SplitSeq(p.text, "\n") {
			if p.pre && line != "" {
				line = "    " + line
			}
			fmt.Fprintln(&b, line)
		}
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(cmd.Example, "  "), "\n  ", "\n"))
	}
	for _, group := range flagGroups() {
		title := fmt.Sprintf("\n| %s | |\n|---|---|\n", strings.ToLower(group.title))
		flagsOf(cmd, group.advanced, func(f *pflag.Flag, value, usage string) {
			fmt.Fprintf(&b, "%s| `%s` | %s |\n", title, strings.TrimSpace(names(f)+" "+value), strings.ReplaceAll(usage, "|", `\|`))
			title = ""
		})
	}
	for _, s := range m.sections(cmd) {
		if cmd.HasParent() && s.title == "Exit status" && !special(s.items) {
			continue // those of all commands are told once
		}
		fmt.Fprintf(&b, "\n| %s | |\n|---|---|\n", strings.ToLower(s.title))
		for _, i := range s.items {
			fmt.Fprintf(&b, "| `%s` | %s |\n", i.Term, i.Text)
		}
	}
	return b.String()
}

// special tells whether some items are not of all commands.
func special(items []Item) bool {
	for _, i := range items {
		if len(i.Of) > 0 {
			return true
		}
	}
	return false
}

func names(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand + ", --" + f.Name
	}
	return "--" + f.Name
}
