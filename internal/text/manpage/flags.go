package manpage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// advanced is the annotation of flags that few users need.
const advanced = "advanced"

// Advanced moves flags of a set to the group "Advanced flags" of help and manual pages.
func Advanced(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = flags.SetAnnotation(name, advanced, nil) // the flag exists
	}
}

// flagGroup is a group of flags in help and manual pages.
type flagGroup struct {
	title    string
	advanced bool
}

// flagGroups are all of them, in order.
func flagGroups() []flagGroup { return []flagGroup{{"Flags", false}, {"Advanced flags", true}} }

// flagHelp lists the flags that are not hidden, on a terminal of so many columns, the advanced ones last.
func flagHelp(flags *pflag.FlagSet, columns int) string {
	var text strings.Builder
	for _, group := range flagGroups() {
		shown := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.VisitAll(func(f *pflag.Flag) {
			if _, is := f.Annotations[advanced]; !f.Hidden && is == group.advanced {
				once := *f
				once.DefValue = defaultOf(f)
				shown.AddFlag(&once)
			}
		})
		if !shown.HasFlags() {
			continue
		}
		if text.Len() > 0 {
			fmt.Fprintf(&text, "\n%s:\n", group.title)
		}
		text.WriteString(shown.FlagUsagesWrapped(columns))
	}
	return text.String()
}

// defaultOf is a flag's default as pflag prints it: its zero value, which pflag leaves out, where the usage states the default.
func defaultOf(f *pflag.Flag) string {
	if !strings.Contains(f.Usage, "(default") {
		return f.DefValue
	}
	switch f.Value.Type() {
	case "int", "int64":
		return "0"
	case "duration":
		return "0s"
	case "stringSlice", "stringArray", "intSlice":
		return "[]"
	}
	return ""
}

// flagsOf calls each with the flags of one group that are not hidden: each flag, its value's name, and its usage with the default.
func flagsOf(cmd *cobra.Command, group bool, each func(flag *pflag.Flag, value, usage string)) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, is := f.Annotations[advanced]; f.Hidden || is != group || f.Name == "help" || f.Name == "version" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		value = strings.TrimSuffix(value, "Array")
		switch text := defaultOf(f); text {
		case "", "0", "0s", "false", "[]", "-1":
		default:
			usage += fmt.Sprintf(" (default %s)", text)
		}
		each(f, value, usage)
	})
}
