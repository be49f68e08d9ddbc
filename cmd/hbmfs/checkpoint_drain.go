package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/progress"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/internal/volume/drain"
)

// drainCommand is hbmfs checkpoint drain.
type drainCommand struct {
	directory, destination string

	opt           drain.Options
	part          size.Flag
	watch, status bool
	printer
}

// drainRate is a rate, or a word.
type drainRate int64

func (r *drainRate) Set(text string) error {
	switch text {
	case "auto":
		*r = drain.Auto
		return nil
	case "none":
		*r = drain.Unlimited
		return nil
	}
	var n size.Rate
	if err := n.Set(text); err != nil {
		return fmt.Errorf("%q is no rate: write it as 500MB/s or 64MiB/s, auto, or none", text)
	}
	*r = drainRate(n)
	return nil
}

func (r *drainRate) String() string {
	switch *r {
	case drain.Auto:
		return "auto"
	case drain.Unlimited:
		return "none"
	}
	n := size.Rate(*r)
	return n.String()
}

func (*drainRate) Type() string { return "rate" }

func newCheckpointDrainCommand() *cobra.Command {
	c := &drainCommand{}
	cmd := &cobra.Command{
		Use:   "drain DIR s3://BUCKET/RUN",
		Short: "Copy checkpoints to S3, where other machines can mount them",
		Long: `Copy the checkpoints of DIR to a place in a bucket. Each becomes the objects RUN/NAME/...; its manifest comes last, and only then a
mount of s3://BUCKET/RUN, or hbmfs checkpoint ls, shows it there. Nothing there is ever overwritten.

Every 4 MiB is compared with its checksum in the manifest before it goes out, and the server compares the received bytes with a
CRC-32C. Damaged files are not sent. After a kill, give the same command again: it skips files that are there. A journal of it is
in DIR/.hbmfs-drain, which one process at a time may have.

A place is of one directory: another one is refused there. Nodes that keep parts of a checkpoint on disks of their own all name
the same place. The checkpoint appears there when all parts have come.

With --watch it goes on with checkpoints that are published later, until it is interrupted. It waits for a store that is gone. Its
exit code is 0. Without, it ends when all is there; the exit code is 3 where a checkpoint is not, and the output says why.

--rate-limit auto sends as fast as it can while nobody writes to the disk of DIR. While others write 16 MiB a second or more, it
takes a twentieth of their rate, at least 16 MiB/s.`,
		Example: `  hbmfs checkpoint drain /nvme/ckpt s3://models/run-1
  hbmfs checkpoint drain --watch --keep 2 /nvme/ckpt s3://models/run-1
  hbmfs checkpoint drain --status /nvme/ckpt`,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	f := cmd.Flags()
	f.BoolVar(&c.watch, "watch", false, "go on with checkpoints that are published later")
	f.Var((*drainRate)(&c.opt.Rate), "rate-limit", "bytes per second to send, such as 500MB/s; auto, or none")
	f.IntVar(&c.opt.Keep, "keep", 0, "keep the newest `N` checkpoints in DIR, by the numbers in their names; remove older ones that are at the destination (default: all)")
	f.IntVar(&c.opt.Connections, "connections", 16, "requests at once; each takes 4 MiB of memory")
	f.Var(&c.part, "part-size", "bytes of a part of a multipart upload (default: 32MiB)")
	f.DurationVar(&c.opt.Patience, "patience", fetch.Patience, "without --watch: give up after the store has been silent for so long")
	f.BoolVar(&c.opt.TakeOver, "take-over", false, "drain to the place of another directory that is gone for good; complete checkpoints there stay")
	f.BoolVar(&c.status, "status", false, "print the progress of the drain of DIR, and change nothing")
	c.takeJSON(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if c.status {
			return exactArgs(1)(cmd, args)
		}
		return exactArgs(2)(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if c.directory = args[0]; c.status {
			return c.onMounts(cmd, args, c.tell)
		}
		c.destination = args[1]
		return c.onMounts(cmd, args[:1], c.run)
	}
	return cmd
}

// tell prints the last state of a directory's drain.
func (c *drainCommand) tell(context.Context) error {
	s, alive, err := drain.Saved(c.directory)
	if err != nil {
		return err
	}
	if !alive && !c.asJSON {
		fmt.Fprintln(c.stdout, "No process drains it now. When the last one ended:")
	}
	return c.say(s)
}

func (c *drainCommand) run(ctx context.Context) error {
	c.opt.PartSize = int64(c.part)
	if c.watch {
		c.opt.Patience = 0
		c.opt.Log = slog.New(slog.NewTextHandler(c.stderr, nil))
	}
	d, err := drain.New(c.directory, c.destination, c.opt)
	if err != nil {
		return cli.Mistake{Err: err}
	}
	if c.watch {
		d.Run(ctx)
		return errors.Join(c.say(d.Status()), d.Close())
	}
	ended := c.draw(d)
	err = d.Once(ctx)
	ended()
	s := d.Status()
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	return problems(c.say(s), s.States.Local+s.States.Draining+s.States.Failed > 0)
}

// draw shows how far it is, until the function that it returns is called.
func (c *drainCommand) draw(d *drain.Drain) (end func()) {
	bar := progress.New(c.stderr, "draining", 0, true)
	if bar == nil {
		return func() {}
	}
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for every := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-stop:
				every.Stop()
				bar.Close()
				return
			case <-every.C:
				var done, total int64
				for _, e := range d.Status().Checkpoints {
					done, total = done+e.Done, total+e.Bytes
				}
				bar.Set(done, total)
			}
		}
	}()
	return func() { close(stop); <-over }
}

func (c *drainCommand) say(s *status.Drain) error {
	return c.print(s, func() { c.write(s) })
}

func (c *drainCommand) write(s *status.Drain) {
	t := c.table("NAME\tSTATE\tPART\tFILES\tSIZE\tTHERE")
	for _, e := range s.Checkpoints {
		if e.State == drain.Draft {
			fmt.Fprintf(t, "%s\t%s\t\t\t\t\n", e.Name, e.State)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%d/%d\t%s\t%s\t%s\n", e.Name, e.State, e.Part+1, e.Parts, size.Grouped(int64(e.Files)), size.Decimal(e.Bytes), size.Decimal(e.Done))
	}
	t.Flush()
	for _, e := range s.Checkpoints {
		if e.Why != "" {
			fmt.Fprintf(c.stdout, "%s: %s\n", e.Name, e.Why)
		}
	}
	if s.Mended > 0 {
		fmt.Fprintf(c.stdout, "%d checkpoints were damaged at the destination, and are whole there again\n", s.Mended)
	}
	if s.Trouble != "" {
		fmt.Fprintf(c.stdout, "The drain to %s has not gone on for %.0f s: %s\n", s.Destination, s.TroubleFor, s.Trouble)
	}
}
