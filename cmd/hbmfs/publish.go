package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/fs/checkpoints"
	"github.com/hbmfs/hbmfs/internal/commands/publish"
	"github.com/hbmfs/hbmfs/internal/text/progress"
)

// publishCommand is hbmfs publish.
type publishCommand struct{ printer }

func newPublishCommand() *cobra.Command {
	c := &publishCommand{}
	return c.work(&cobra.Command{
		Use:   "publish PATH...",
		Short: "Publish drafts of a checkpoint volume",
		Long: `Publish drafts: directories in the root of a mount that hbmfs checkpoint mount made. A published checkpoint never changes. All its
files are on the disk, and have checksums. A draft that ends in .tmp loses that ending.

Programs that rename step_100.tmp to step_100, and torch's DCP, publish by themselves. This command is for the others. If a file
is still open for writing, or mapped, the draft cannot be published. The command then names the file, its exit code is 1, and the
draft stays as it was. Ctrl-C stops it, and leaves the draft as it was, too.`,
		Example:           "  hbmfs publish /mnt/ckpt/step_1000",
		ValidArgsFunction: completeDirectories,
	}, someArgs("drafts"), c.run)
}

// publishedDraft is the result for one path.
type publishedDraft struct {
	Path    string  `json:"path"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func (c *publishCommand) run(ctx context.Context, paths []string) error {
	done := []publishedDraft{}
	var err error
	for _, path := range paths {
		began := time.Now()
		var bytes int64
		if bytes, err = c.one(ctx, path); err != nil {
			err = fmt.Errorf("publish %s: %w", path, err)
			break
		}
		p := publishedDraft{strings.TrimSuffix(filepath.Clean(path), checkpoints.Suffix), bytes, time.Since(began).Seconds()}
		if done = append(done, p); !c.asJSON {
			fmt.Fprintf(c.stdout, "published %s\n", p.Path)
		}
	}
	if c.asJSON {
		err = errors.Join(err, writeJSON(c.stdout, map[string]any{"published": done}))
	}
	return err
}

// one publishes a draft, and shows how far it is.
func (c *publishCommand) one(ctx context.Context, path string) (bytes int64, err error) {
	bar := progress.New(c.stderr, "publishing", 0, true)
	defer bar.Close()
	return publish.Draft(ctx, path, bar.Set)
}
