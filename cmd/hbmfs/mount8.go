package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/internal/text/suggest"
	"github.com/hbmfs/hbmfs/internal/text/usage"
)

// mountName is the name of the command that mounts.
const mountName = "mount"

// mountHelper is the name under which mount(8) starts this program for a line of type fuse.hbmfs in /etc/fstab.
const mountHelper = "mount.fuse.hbmfs"

// fstabWait is how long a mount of /etc/fstab waits for a source that cannot answer yet: it is not started again, while a
// unit is, and a user at a terminal would rather know.
const fstabWait = "2m"

// fromMount8 turns the command line of a mount(8) helper into one of hbmfs mount:
//
//	mount.fuse.hbmfs SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-o OPTIONS] [-t TYPE]
func fromMount8(args []string) ([]string, error) {
	out := []string{mountName, "--wait=" + fstabWait} // options come later, so that one of them may say otherwise
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
	return append(append(out, "--"), places...), nil
}

// applyOptions sets the flags of hbmfs mount that a mount(8) option string names, and returns those that are meant for the
// kernel. Options that only mount(8), systemd or a read-only filesystem care about are accepted and dropped.
func (c *mountCommand) applyOptions(options string, flags *pflag.FlagSet) (kernel []string, err error) {
	for _, o := range strings.Split(options, ",") {
		name, value, hasValue := strings.Cut(o, "=")
		switch name {
		case "", "ro", "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev",
			"atime", "noatime", "relatime", "norelatime", "strictatime", "diratime", "nodiratime", "async", "sync", "dirsync", "comment":
		case "dev", "nodev", "suid", "nosuid", "exec", "noexec":
			kernel = append(kernel, name)
		case "fsname":
			if value == "" {
				return nil, usage.Errorf("option -o fsname needs a value")
			}
			c.Options.Name = value
		default:
			if err := setFlag(flags, name, value, hasValue); err != nil {
				return nil, usage.Errorf("option -o %s: %w", o, err)
			}
		}
	}
	return kernel, nil
}

// setFlag sets the flag that an option names. x-NAME is for others, such as systemd.
func setFlag(flags *pflag.FlagSet, name, value string, hasValue bool) error {
	flag := flags.Lookup(strings.ReplaceAll(name, "_", "-"))
	switch known := flag != nil && flag.Name != "options" && flag.Name != "help"; {
	case !known && (strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "X-")):
		return nil
	case !known:
		if said := suggest.Did(strings.ReplaceAll(name, "_", "-"), "", flagNames(flags)); said != "" {
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
