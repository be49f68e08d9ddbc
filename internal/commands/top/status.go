package top

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/layout"
)

// Points are the mount points of hbmfs that this process sees. It asks no daemon.
func Points() ([]string, error) {
	mounts, err := findMounts()
	var points []string
	for _, m := range mounts {
		points = append(points, m.Points...)
	}
	slices.Sort(points)
	return points, err
}

// StatusOf asks the mount that path lies in for its status.
func StatusOf(ctx context.Context, program, path string, patience time.Duration) (*Row, error) {
	place, err := mountpoint.Locate(path)
	if err != nil {
		return nil, err
	}
	mounts, err := findMounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if place.Over == nil || !slices.Contains(m.Points, place.Over.Mountpoint) {
			continue
		}
		answer := NewSampler(program, "status", patience).ask(ctx, m)
		return &Rows([]Sample{{m, answer, time.Now()}}, nil)[0], ctx.Err()
	}
	return nil, fmt.Errorf("%s lies in no mount of hbmfs: hbmfs status lists them", place.Path)
}

// setsMost is how many sets a status lists.
const setsMost = 20

// WriteStatus writes a mount's state and contents, without rates, for a terminal of so many columns; 0 breaks no lines.
func WriteStatus(w io.Writer, r *Row, columns int) error {
	fmt.Fprintf(w, "%s: %s\n", cli.Printable(r.MountPoint), r.State)
	var lines bytes.Buffer
	t := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	if r.Error != "" {
		fmt.Fprintf(t, "  error\t%s\n", cli.Printable(r.Error))
	}
	if s := r.Told; s != nil {
		fmt.Fprintf(t, "  program\thbmfs %s\n", cli.Printable(s.Version))
		recognized := fmt.Sprintf("%d views", s.Views)
		if s.Unbuilt > 0 {
			recognized += fmt.Sprintf(", and up to %d more that nobody has asked for yet", s.Unbuilt)
		}
		if s.Indexing {
			recognized = "being recognized"
		}
		if s.Checkpoints == nil && s.KV == nil { // volumes have lines of their own
			fmt.Fprintf(t, "  dataset\t%s files, %s; %s\n", size.Grouped(int64(s.Objects)), size.Decimal(s.Bytes), recognized)
		}
		for i, set := range s.Sets {
			if i == setsMost {
				fmt.Fprintf(t, "  \t... and %d more (--json has all)\n", len(s.Sets)-i)
				break
			}
			place := set.Dir
			if place == "" {
				place = "."
			}
			if set.Split != "" {
				place += " [" + set.Split + "]"
			}
			fmt.Fprintf(t, "  \t%s: %s%s\n", cli.Printable(place), set.Format, contents(&set))
		}
		if s.Passthrough.On {
			fmt.Fprintln(t, "  passthrough\ton")
		}
		writeStatus(t, r, true)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(lines.String()) {
		if _, err := io.WriteString(w, hang(strings.TrimSuffix(line, "\n"), columns)); err != nil {
			return err
		}
	}
	return nil
}

// contents says how much a set has: of tokens, of samples, or of both.
func contents(s *status.Set) (text string) {
	if s.DType != layout.DTypeUnknown {
		text = " " + s.DType.String()
	}
	if s.Guessed {
		text += " (guessed)"
	}
	text += fmt.Sprintf(", %s shards", size.Grouped(int64(s.Shards)))
	if s.Tokens >= 0 {
		text += fmt.Sprintf(", %s tokens", size.Grouped(s.Tokens))
	}
	if s.Samples > 0 {
		text += fmt.Sprintf(", %s samples", size.Grouped(s.Samples))
	}
	return text
}
