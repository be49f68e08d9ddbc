package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// mountName is the name of the command that mounts.
const mountName = "mount"

// mountHelper is the name under which mount(8) starts this program for a line of type fuse.hbmfs in /etc/fstab.
const mountHelper = "mount.fuse.hbmfs"

// fstabWait is how long a mount of /etc/fstab waits for a source that cannot answer yet. A mount of /etc/fstab is not
// started again, while a unit is, and a user at a terminal would rather know.
const fstabWait = "2m"

// fromMount8 turns the command line of a mount(8) helper into one of hbmfs mount:
//
//	mount.fuse.hbmfs SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-o OPTIONS] [-t TYPE]
func fromMount8(args []string) ([]string, error) {
	out := []string{mountName}
	var places []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "-o" || a == "-t" || a == "-N":
			if i++; i == len(args) {
				return nil, fmt.Errorf("option %s needs a value", a)
			}
			if a == "-o" {
				out = append(out, "-o", args[i])
			}
		case len(a) > 1 && a[0] == '-' && strings.Trim(a[1:], "sfnvw") == "":
			if strings.Contains(a, "f") {
				return nil, fmt.Errorf("a fake mount (-f) is not possible")
			}
		case strings.HasPrefix(a, "-"):
			return nil, fmt.Errorf("unknown option %s", a)
		default:
			places = append(places, a)
		}
	}
	if len(places) != 2 {
		return nil, fmt.Errorf("usage: %s SOURCE MOUNTPOINT [-o OPTIONS]", mountHelper)
	}
	out = formerMount(append(append(out, "--"), places...), mountHelper)
	if out[0] == mountName {
		out = slices.Insert(out, 1, "--wait="+fstabWait, "--"+formerFlag+"="+mountHelper) // -o comes later, and may name another time
	}
	return out, nil
}

// formerFlag is a hidden flag: the spelling that [formerMount] has translated.
const formerFlag = "former-spelling"

// formerMount turns a command line of hbmfs mount that asks for a volume into one of hbmfs checkpoint mount or hbmfs kv mount. Earlier
// releases had the flags --checkpoints and --kv, and lines of /etc/fstab have them as options. by is the former spelling, empty for that of the flag.
func formerMount(args []string, by string) []string {
	if len(args) == 0 || args[0] != mountName {
		return args
	}
	volume, out := "", []string{}
	take := func(word string) bool {
		switch name, value, _ := strings.Cut(word, "="); {
		case value != "" && value != "true" || volume != "" || name != "checkpoints" && name != "kv":
			return false
		default:
			volume = name
			return true
		}
	}
	takeOptions := func(options string) string {
		return strings.Join(slices.DeleteFunc(strings.Split(options, ","), take), ",")
	}
	for i := 1; i < len(args); i++ {
		a := args[i]
		name, value, joined := strings.Cut(a, "=")
		switch {
		case a == "--":
			out, i = append(out, args[i:]...), len(args)
		case strings.HasPrefix(a, "--") && take(a[2:]):
		case (a == "-o" || a == "--options") && i+1 < len(args):
			i++
			out = append(out, a, takeOptions(args[i]))
		case name == "--options" && joined:
			out = append(out, name, takeOptions(value))
		case strings.HasPrefix(a, "-o"):
			out = append(out, "-o", takeOptions(a[2:]))
		default:
			out = append(out, a)
		}
	}
	if volume == "" {
		return args
	}
	if by == "" {
		by = mountName + " --" + volume
	}
	return append([]string{strings.TrimSuffix(volume, "s"), mountName, "--" + formerFlag + "=" + by}, out...)
}

// applyOptions sets the flags of hbmfs mount that a mount(8) option string names, and returns those that are meant for the
// kernel. Options that only mount(8), systemd or a read-only filesystem care about are accepted and dropped.
func (c *mountCommand) applyOptions(options string, flags *pflag.FlagSet) (kernel []string, err error) {
	for o := range strings.SplitSeq(options, ",") {
		name, value, hasValue := strings.Cut(o, "=")
		switch name {
		case "rw":
			if err := c.refuseWrites(); err != nil {
				return nil, err
			}
		case "", "ro", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev",
			"atime", "noatime", "relatime", "norelatime", "strictatime", "diratime", "nodiratime", "async", "sync", "dirsync", "comment":
		case "dev", "nodev", "suid", "nosuid", "exec", "noexec":
			kernel = append(kernel, name)
		case "fsname":
			if value == "" {
				return nil, cli.Mistakef("option -o fsname needs a value")
			}
			c.Options.Name = value
		default:
			if err := setFlag(flags, name, value, hasValue); err != nil {
				return nil, cli.Mistakef("option -o %s: %w", o, err)
			}
		}
	}
	return kernel, nil
}

// refuseWrites refuses the option rw for a dataset. mount(8) passes it for every line of /etc/fstab without ro, which is no wish.
func (c *mountCommand) refuseWrites() error {
	if c.former == "" && !c.Checkpoints.On && !c.KV.On {
		return cli.Mistakef("-o rw: a dataset is mounted read-only; hbmfs checkpoint mount and hbmfs kv mount make mounts that programs write to")
	}
	return nil
}

// setFlag sets the flag that an option names. x-NAME is for others, such as systemd.
func setFlag(flags *pflag.FlagSet, name, value string, hasValue bool) error {
	flag := flags.Lookup(strings.ReplaceAll(name, "_", "-"))
	switch known := flag != nil && flag.Name != "options" && flag.Name != "help" && flag.Name != formerFlag; {
	case !known && (strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "X-")):
		return nil
	case !known:
		if said := cli.Suggest(strings.ReplaceAll(name, "_", "-"), "", flagNames(flags)); said != "" {
			return errors.New("not known" + strings.ReplaceAll(said, "-", "_"))
		}
		return errors.New("not known: hbmfs mount --help lists the flags, which are options too, with _ for -")
	case !hasValue && flag.NoOptDefVal == "":
		return errors.New("it needs a value")
	case !hasValue:
		value = flag.NoOptDefVal
	}
	return flags.Set(flag.Name, value)
}
