package manpage

import (
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestBlocks(t *testing.T) {
	for text, want := range map[string][]block{
		"":                              nil,
		"one\ntwo\n\nthree":             {{"one\ntwo", false}, {"three", false}},
		"a:\n\n  code\n\n    more\n\nb": {{"a:", false}, {"code\n\n  more", true}, {"b", false}},
		"a:\n  code\nb":                 {{"a:", false}, {"code", true}, {"b", false}},
		"  code\n":                      {{"code", true}},
	} {
		if got := blocks(text); !reflect.DeepEqual(got, want) {
			t.Errorf("%q has the blocks %v, want %v", text, got, want)
		}
	}
}

func TestEscape(t *testing.T) {
	for text, want := range map[string]string{".so file\n'quote' --flag \\n": "\\&.so file\n\\&'quote' \\-\\-flag \\en", "/data/.hbmfs": "/data/.hbmfs"} {
		if got := escape(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// An item is of the commands that it names, of those below them, and of the first.
func TestItemsAreOfTheirCommands(t *testing.T) {
	root, cache, list := &cobra.Command{Use: "hbmfs"}, &cobra.Command{Use: "cache"}, &cobra.Command{Use: "ls", Run: func(*cobra.Command, []string) {}}
	other := &cobra.Command{Use: "cached", Run: func(*cobra.Command, []string) {}}
	root.AddCommand(cache, other)
	cache.AddCommand(list)
	m := &Manual{Exit: []Item{{"0", "done", nil}, {"3", "problems", []string{"cache"}}}, Files: []Item{{"/f", "a file", []string{"cache ls"}}}}
	for cmd, want := range map[*cobra.Command]string{root: "03/f", cache: "03", list: "03/f", other: "0"} {
		var got strings.Builder
		for _, s := range m.sections(cmd) {
			for _, i := range s.items {
				got.WriteString(i.Term)
			}
		}
		if got.String() != want {
			t.Errorf("%s has %s, want %s", cmd.CommandPath(), got.String(), want)
		}
	}
}

// On a terminal no line is longer than it is wide, except examples; elsewhere lines stay as they were written.
func TestHelpFitsTheTerminal(t *testing.T) {
	root, example := &cobra.Command{Use: "hbmfs"}, "hbmfs read"+strings.Repeat(" FILE", 30)
	cmd := &cobra.Command{Use: "read FILE", Run: func(*cobra.Command, []string) {}, Long: "Some words that are " + strings.Repeat("longer ", 30) + "than it:\n\n  a  " + strings.Repeat("table ", 30) + "\n\n  " + example}
	cmd.Flags().Bool("flag", false, strings.Repeat("says more ", 20))
	root.AddCommand(cmd)
	m := &Manual{Exit: []Item{{"0", strings.Repeat("done ", 40), nil}}, Files: []Item{{strings.Repeat("f", 45), strings.Repeat("a file ", 20), nil}}}
	for _, columns := range []int{50, 80, 120} {
		got := m.Help(cmd, columns)
		for line := range strings.Lines(got) {
			if line = strings.TrimRight(line, " \n"); len(line) > columns && line != "  "+example {
				t.Errorf("in %d columns a line has %d: %q", columns, len(line), line)
			}
		}
		if words := strings.Join(strings.Fields(got), " "); words != strings.Join(strings.Fields(m.Help(cmd, 0)), " ") {
			t.Errorf("in %d columns help has other words: %s", columns, got)
		}
	}
	if got := m.Help(cmd, 0); !strings.Contains(got, cmd.Long[:200]) {
		t.Errorf("no terminal: %s", got)
	}
	if got := wrap("a bc def", 2, 10); got != "a bc def" { // less than a text gets at least
		t.Errorf("%q", got)
	}
}

// A command that is used in two ways has two lines.
func TestTwoUsages(t *testing.T) {
	cmd := &cobra.Command{Use: "pack IN OUT [flags]\n  pack --join OUT [flags]", Run: func(*cobra.Command, []string) {}}
	if got := usages(cmd); !reflect.DeepEqual(got, []string{"pack IN OUT [flags]", "pack --join OUT [flags]"}) {
		t.Errorf("%q", got)
	}
}
