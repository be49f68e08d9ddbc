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
