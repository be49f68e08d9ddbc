// Command hbmfs-csi is the CSI driver of hbmfs: the plugin that kubelet talks to, and the host that keeps the daemons.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/csi/mounts"
	"github.com/hbmfs/hbmfs/internal/text/release"
)

// version is that of the whole release.
var version = release.Version()

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newPluginCommand()
	root.AddCommand(newHostCommand(), newInsideCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(stderr, "hbmfs-csi: %v\n", err)
		return 1
	}
	return 0
}

// logFlags say how much is logged, and how.
type logFlags struct {
	level  slog.Level
	format string
}

func (f *logFlags) add(cmd *cobra.Command) {
	cmd.Flags().TextVar(&f.level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	cmd.Flags().StringVar(&f.format, "log-format", "text", "text or json")
}

func (f *logFlags) logger(to io.Writer) (*slog.Logger, error) {
	opt := &slog.HandlerOptions{Level: f.level}
	switch f.format {
	case "text":
		return slog.New(slog.NewTextHandler(to, opt)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(to, opt)), nil
	}
	return nil, fmt.Errorf("--log-format %q: want text or json", f.format)
}

// insideName is the hidden command that the host starts to replace mounts in a pod's namespace.
const insideName = "replace-inside"

func newInsideCommand() *cobra.Command {
	return &cobra.Command{
		Use:    insideName,
		Hidden: true, // not for people
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return mounts.Inside(os.Stdin, cmd.OutOrStdout()) },
	}
}
