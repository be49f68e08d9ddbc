// Command hbmfs mounts sharded, tokenized datasets as plain files.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hbmfs/hbmfs/internal/daemon"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/internal/volume/drain"
)

// version is that of the whole release.
var version = cli.Version()

// Exit codes, the same for every command.
const (
	exitOK       = 0
	exitFailed   = 1 // it did not work; the message says why
	exitUsage    = 2 // the command line is wrong
	exitProblems = 3 // inspect, check, cache verify, kv verify, checkpoint verify and drain: it worked, and there are problems
	exitBusy     = 4 // umount, checkpoint rm and drain: it is in use
	exitMissing  = 5 // mount -f: the source does not exist
	exitDenied   = 6 // mount -f: the source may not be read
	exitSignal   = 130
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == handover.KeeperArgument { // it takes as little memory as it can
		os.Exit(handover.Keep(os.Args[2:]))
	}
	os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if filepath.Base(args[0]) == mountHelper {
		translated, err := fromMount8(args[1:])
		if err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", mountHelper, err)
			return exitUsage
		}
		args = append([]string{"hbmfs"}, translated...)
	}
	args = append(args[:1:1], formerMount(args[1:], "")...)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRootCommand()
	root.SetArgs(args[1:])
	out := &output{to: stdout}
	if root.SetOut(out); isTerminal(stdout) { // some commands ask for its size
		root.SetOut(stdout)
	}
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if lost := out.failed(); lost != nil && (err == nil || errors.Is(err, errProblems)) && (cmd.Name() != mountName || cmd.Flags().Changed("help")) { // the mount is there, though nothing could be printed
		err = fmt.Errorf("print the result: %w", lost)
	}
	if err != nil {
		if errors.Is(err, context.Canceled) {
			err = onmount.ErrInterrupted
		}
		if message := err.Error(); message != "" {
			fmt.Fprintf(stderr, "hbmfs: %s\n", message)
		}
		return exitCode(err)
	}
	return exitOK
}

// errProblems ends inspect and check when there are problems, which they have printed.
var errProblems = errors.New("")

func exitCode(err error) int {
	var wrong cli.Mistake
	var source daemon.SourceError
	var ended onmount.Ended
	switch opening := errors.As(err, &source); {
	case errors.As(err, &ended):
		return int(ended)
	case errors.Is(err, onmount.ErrInterrupted):
		return exitSignal
	case errors.As(err, &wrong):
		return exitUsage
	case errors.Is(err, errProblems):
		return exitProblems
	case errors.Is(err, mountpoint.ErrBusy), errors.Is(err, checkpoint.ErrBusy), errors.Is(err, drain.ErrBusy):
		return exitBusy
	case opening && errors.Is(err, os.ErrNotExist):
		return exitMissing
	case opening && errors.Is(err, os.ErrPermission):
		return exitDenied
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "hbmfs",
		Short: "Mount sharded, tokenized datasets as plain files",
		Long: `hbmfs mounts a directory of shards as plain files, at the speed of the disk they lie on. It adds views of them:
the same tokens as one NumPy array, one flat file, or a Megatron pair, without a byte copied.

  hbmfs inspect /data/pile                 what is this dataset, and is it sound?
  hbmfs mount /data/pile /mnt/pile         mount it, with views in .hbmfs/views
  hbmfs status /mnt/pile                   what is mounted there, and is it well?
  hbmfs top                                watch the mounts of this machine
  hbmfs umount /mnt/pile                   unmount it
  hbmfs pack --to npy texts/ /data/new     tokenize text into aligned shards
  hbmfs checkpoint mount /nvme/ckpt /ckpt  a volume where programs save checkpoints
  hbmfs kv mount --size 1TiB /nvme/kv /kv  a volume for blocks of KV caches
  hbmfs check /mnt/pile/train.bin          can a GPU read it without the CPU?`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = noneEmpty
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		fmt.Fprint(cmd.OutOrStdout(), manual().Help(cmd, columns(cmd.OutOrStdout())))
	})
	root.SetHelpCommand(newHelpCommand(root))
	addCommands(root)
	addGroup(root, "Datasets", newMountCommand(), newLsCommand(), newInspectCommand(), newPackCommand(), newWarmCommand(), newCacheCommand())
	addGroup(root, "Checkpoints and KV caches", newCheckpointCommand(), newPublishCommand(), newKVCommand())
	addGroup(root, "Running mounts", newStatusCommand(), newTopCommand(), newUmountCommand(), newUpgradeCommand())
	addGroup(root, "GPU readers", newLocateCommand(), newReadCommand(), newCheckCommand())
	addGroup(root, "For specialists", newBenchCommand(), newPlanCommand(), newCuFileJSONCommand())
	root.AddCommand(newVersionCommand(), newManCommand(root))
	addHidden(root)
	return root
}

// addGroup adds commands that help lists under a title.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title + ":"})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
}

// widest is how many columns help takes at most: longer lines are hard to read.
const widest = 120

// columns is how wide the terminal is that out is, as far as help takes it; 0 where out is none.
func columns(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	wide, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return min(wide, widest)
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintf(cmd.OutOrStdout(), "hbmfs version %s\n", version) // as --version does
			return nil
		},
	}
}
