package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/internal/commands/top"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// noneEmpty refuses an argument without a character. It mostly is a variable that is not set.
// As a path it would be the working directory.
func noneEmpty(cmd *cobra.Command, args []string) error {
	if i := slices.Index(args, ""); i >= 0 && !cmd.Hidden { // the shell completes empty words
		return cli.Mistakef("argument %d is empty: is a variable not set? usage: %s", i+1, strings.ReplaceAll(cmd.UseLine(), "\n  ", "; or: "))
	}
	return nil
}

// exactArgs is for commands that take n arguments.
func exactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return cli.Mistakef("it takes %s, not %d: usage: %s", counted(n), len(args), cmd.UseLine())
		}
		return nil
	}
}

// counted is a number of arguments in words.
func counted(n int) string {
	switch n {
	case 0:
		return "no arguments"
	case 1:
		return "1 argument"
	}
	return fmt.Sprintf("%d arguments", n)
}

// someArgs is for commands that take one thing or more.
func someArgs(things string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cli.Mistakef("name the %s: usage: %s", things, cmd.UseLine())
		}
		return nil
	}
}

// atMostOne is for commands that take one thing or none.
func atMostOne(thing string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return cli.Mistakef("at most 1 argument, %s, not %d", thing, len(args))
		}
		return nil
	}
}

// hidden is a command that this program gives itself, and not people.
func hidden(name string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{Use: name, Hidden: true, Args: args, RunE: run}
}

// completeDirectories offers a shell directories.
func completeDirectories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// completeMounts offers a shell the mount points of hbmfs.
func completeMounts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	points, _ := top.Points() // a shell has no room for errors
	return points, cobra.ShellCompDirectiveNoFileComp
}

// oneOf is a flag that takes one of a few words.
type oneOf struct {
	to    *string
	words []string
}

func (c oneOf) String() string { return *c.to }
func (c oneOf) Type() string   { return "word" }

func (c oneOf) Set(text string) error {
	for _, w := range c.words {
		if strings.EqualFold(text, w) {
			*c.to = w
			return nil
		}
	}
	return fmt.Errorf("%q is none of %s%s", text, strings.Join(c.words, ", "), cli.Suggest(text, "", c.words))
}

// addChoice adds a flag that takes one of words, which a shell completes.
func addChoice(cmd *cobra.Command, to *string, name, value, usage string, words ...string) {
	*to = value
	cmd.Flags().Var(oneOf{to, words}, name, usage)
	completeFlag(cmd, name, words...)
}

// completeFlag has a shell complete a flag's values, which need not be all.
func completeFlag(cmd *cobra.Command, name string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

// flagError reports a mistake in a flag, in the words of the command line.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var wrong *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		name := unknown.GetSpecifiedName()
		said := otherMount(cmd, name)
		if said == "" {
			said = cli.Suggest(name, "--", flagNames(cmd.Flags()))
		}
		if said == "" {
			said = fmt.Sprintf(": %s --help lists the flags", cmd.CommandPath())
		}
		err = fmt.Errorf("unknown flag --%s%s", name, said)
	case errors.As(err, &wrong):
		err = fmt.Errorf("--%s: %w", wrong.GetFlag().Name, wrongValue(wrong.GetFlag(), wrong.GetValue(), wrong.Unwrap()))
	}
	return cli.Mistake{Err: err}
}

// otherMount names the command that has a flag which this one, of the three that mount, has not.
func otherMount(cmd *cobra.Command, flag string) string {
	if cmd.Name() != mountName {
		return ""
	}
	for _, path := range [][]string{{mountName}, {"checkpoint", mountName}, {"kv", mountName}} {
		other, _, err := cmd.Root().Find(path)
		if err != nil {
			continue
		}
		if f := other.Flags().Lookup(flag); f != nil && !f.Hidden {
			return ": it is a flag of " + other.CommandPath()
		}
	}
	return ""
}

// wrongValue is err. For a flag of one of Go's own types it names the values that the flag takes.
func wrongValue(flag *pflag.Flag, value string, err error) error {
	wants := map[string]string{
		"int": "a whole number", "int64": "a whole number", "float64": "a number", "bool": "true or false", "duration": "a time such as 90s, 2m or 1h",
		"stringSlice": "words separated by commas", "intSlice": "whole numbers separated by commas",
	}
	if want := wants[flag.Value.Type()]; want != "" {
		return fmt.Errorf("%q is not %s", value, want)
	}
	return err
}

func flagNames(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

// addCommands adds the commands below one that does nothing by itself.
func addCommands(cmd *cobra.Command, below ...*cobra.Command) {
	cmd.AddCommand(below...)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(append(names, c.Name()), c.Aliases...)
			}
		}
		said := cli.Suggest(args[0], cmd.CommandPath()+" ", names)
		if said == "" {
			said = fmt.Sprintf(": %s --help lists the commands", cmd.CommandPath())
		}
		return cli.Mistakef("unknown command %q%s", cmd.CommandPath()+" "+args[0], said)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// newHelpCommand is cobra's own, but for a command that there is not.
func newHelpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (words []string, _ cobra.ShellCompDirective) {
			if about, _, err := root.Find(args); err == nil {
				for _, c := range about.Commands() {
					if c.IsAvailableCommand() {
						words = append(words, c.Name()+"\t"+c.Short)
					}
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err == nil && about.HasSubCommands() {
				err = about.Args(about, rest)
			}
			if err != nil {
				return err
			}
			return about.Help()
		},
	}
}
