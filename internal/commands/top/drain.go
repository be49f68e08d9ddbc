package top

import (
	"fmt"
	"io"
	"time"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// drainMost is how many checkpoints that are not at S3 have a line.
const drainMost = 5

// writeDrain writes how far a volume's checkpoints are on their way to S3.
func writeDrain(t io.Writer, d *status.Drain) {
	n := d.States
	fmt.Fprintf(t, "  drain\t%s: %d remote, %d draining, %d local, %d failed; %s sent", Printable(d.Destination), n.Remote, n.Draining, n.Local, n.Failed, size.Decimal(d.Sent))
	if d.Bound > 0 {
		fmt.Fprintf(t, ", at most %s/s now", size.Decimal(d.Bound))
	}
	if d.Pending > 0 {
		fmt.Fprintf(t, "; %s to go, the oldest since %s", size.Decimal(d.Pending), (time.Duration(d.PendingFor) * time.Second).String())
	}
	fmt.Fprintln(t)
	if d.Trouble != "" {
		fmt.Fprintf(t, "  drain waits\tfor %s: %s\n", (time.Duration(d.TroubleFor) * time.Second).String(), Printable(d.Trouble))
	}
	shown := 0
	for _, c := range d.Checkpoints {
		if c.State != "failed" && (c.State != "draining" || c.Why == "" || d.Trouble != "") {
			continue
		}
		if shown++; shown > drainMost {
			fmt.Fprintf(t, "  \t... and more (--json has all)\n")
			return
		}
		fmt.Fprintf(t, "  \t%s: %s, %s\n", Printable(c.Name), c.State, Printable(c.Why))
	}
}
