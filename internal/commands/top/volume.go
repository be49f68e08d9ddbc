package top

import (
	"fmt"
	"io"
	"time"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// draftsMost is how many drafts, and how many refusals, a status lists.
const draftsMost = 20

// writeCheckpoints writes a checkpoint volume's contents, its writers, and refused requests. nil: it is another mount.
func writeCheckpoints(t io.Writer, c *status.Checkpoints) {
	if c == nil {
		return
	}
	total := int64(0)
	for _, p := range c.Published {
		total += p.Size
	}
	fmt.Fprintf(t, "  checkpoints\t%d published, %s; %d drafts; %s free\n", len(c.Published), size.Decimal(total), len(c.Drafts), size.Decimal(c.Free))
	for i, d := range c.Drafts {
		if i == draftsMost {
			fmt.Fprintf(t, "  \t... and %d more (--json has all)\n", len(c.Drafts)-i)
			break
		}
		fmt.Fprintf(t, "  draft\t%s\n", draftLine(&d))
	}
	for _, why := range c.Refused[max(0, len(c.Refused)-draftsMost):] {
		fmt.Fprintf(t, "  refused\t%s\n", cli.Printable(why))
	}
	if c.Drain != nil {
		writeDrain(t, c.Drain)
	}
}

// draftLine is a draft in a line.
func draftLine(d *status.DraftState) string {
	line := fmt.Sprintf("%s of user %d, since %s, %d files open", cli.Printable(d.Name), d.UID, d.Since.Local().Format(time.DateTime), d.Open)
	switch {
	case d.Past:
		line += fmt.Sprintf(", written past FUSE by process %d, %s", d.PID, size.Decimal(d.Total))
	case d.Sealing:
		line += fmt.Sprintf(", being published: %s of %s", size.Decimal(d.Done), size.Decimal(d.Total))
	default:
		line += fmt.Sprintf(", last changed %s ago", (time.Duration(d.Idle) * time.Second).String())
	}
	return line
}
