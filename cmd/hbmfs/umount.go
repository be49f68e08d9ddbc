package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/fs"
)

func newUmountCommand() *cobra.Command {
	var lazy bool
	cmd := &cobra.Command{
		Use:     "umount MOUNTPOINT",
		Aliases: []string{"unmount"},
		Short:   "Take a mount away",
		Long: `Take the mount at MOUNTPOINT away and end its daemon. A mount that is in use stays, and the message names the
processes that hold it (exit code 4). A mount whose daemon died is cleaned up.`,
		Args: exactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			point, err := resolvePoint(args[0])
			if err != nil {
				return err
			}
			if dead, err := fs.ClearDead(point); dead || err != nil {
				return err
			}
			switch ours, err := fs.Mounted(point); {
			case err != nil:
				return err
			case !ours:
				return fmt.Errorf("nothing of hbmfs is mounted at %s: findmnt -t fuse.hbmfs lists the mounts", point)
			case lazy:
				return fs.Detach(point)
			}
			return fs.Unmount(point)
		},
	}
	cmd.Flags().BoolVarP(&lazy, "lazy", "l", false, "take a mount that is in use out of the tree now; its daemon ends with the last open file")
	return cmd
}

// resolvePoint returns the path by which the mount table knows a mount point: absolute, without symbolic links.
func resolvePoint(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if resolved, err := filepath.EvalSymlinks(abs); err == nil {
		return resolved, nil
	}
	// A dead mount cannot be looked at, and what does not exist is the caller's to report.
	if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		return filepath.Join(dir, filepath.Base(abs)), nil
	}
	return abs, nil
}
