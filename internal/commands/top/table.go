package top

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// WriteTable writes one line for each mount, under a line of headings. width is how many columns the terminal has: the table leaves out
// columns that do not fit, the least useful first. 0 leaves nothing out.
func WriteTable(w io.Writer, rows []Row, width int) error {
	table := [][]string{{"MOUNT", "STATE", "PASSTHROUGH", "OPEN", "OPENS/S", "SPLICE/S", "COPY/S", "READERS/S", "ORIGIN/S", "CACHE", "ERRORS"}}
	most := 40
	if width > 0 {
		most = min(most, max(12, width/3))
	}
	for i := range rows {
		table = append(table, cells(&rows[i], most))
	}
	table = narrow(table, width)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range table {
		fmt.Fprintln(t, strings.Join(line, "\t"))
	}
	return t.Flush()
}

// narrow leaves columns out of a table until it fits: by their headings, in this order.
func narrow(table [][]string, width int) [][]string {
	for _, heading := range []string{"PASSTHROUGH", "OPENS/S", "COPY/S", "OPEN", "ORIGIN/S", "SPLICE/S"} {
		total := -2 // the last column has no gap after it
		for i := range table[0] {
			widest := 0
			for _, line := range table {
				widest = max(widest, utf8.RuneCountInString(line[i]))
			}
			total += widest + 2
		}
		if width <= 0 || total <= width {
			break
		}
		at := slices.Index(table[0], heading)
		for i := range table {
			table[i] = slices.Delete(table[i], at, at+1)
		}
	}
	return table
}

// cells are those of a mount's line, under all headings.
func cells(r *Row, most int) []string {
	line := []string{shorten(r.MountPoint, most), string(r.State), "-", "-", "-", "-", "-", "-", "-", "-", "-"}
	s := r.Told
	if s == nil {
		return line
	}
	line[2], line[3] = map[bool]string{true: "on", false: "off"}[s.Passthrough.On], strconv.FormatInt(s.OpenFiles.Passthrough+s.OpenFiles.Daemon, 10)
	line[9], line[10] = cacheCell(r), strconv.FormatInt(s.Counters.Errors, 10)
	if x := r.Rates; x != nil {
		line[4] = fmt.Sprintf("%.0f", x.PassthroughOpens+x.DaemonOpens)
		for i, n := range []float64{x.SplicedBytes, x.CopiedBytes, x.ReaderBytes, x.OriginBytes} {
			line[5+i] = size.Decimal(int64(n))
		}
		if s.Origin == nil {
			line[8] = "-"
		}
	}
	return line
}

func cacheCell(r *Row) string {
	c := r.Told.Cache
	switch {
	case c == nil:
		return "-"
	case c.Sick:
		return "SICK"
	}
	return fmt.Sprintf("%.0f%%", 100*float64(c.Bytes)/float64(max(1, c.Limit)))
}

// WriteDetails writes the details that do not fit a mount's line.
func WriteDetails(w io.Writer, r *Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\n", shorten(r.MountPoint, 120))
	if len(r.AlsoAt) > 0 {
		more := ""
		if n := len(r.AlsoAt) - 1; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		fmt.Fprintf(t, "  also at\t%s%s\n", shorten(r.AlsoAt[0], 80), more)
	}
	if r.Error != "" {
		fmt.Fprintf(t, "  %s\t%s\n", r.State, cli.Printable(r.Error))
	}
	if r.Told != nil {
		writeStatus(t, r, false)
	}
	return t.Flush()
}

// writeStatus writes what a mount says of itself. The screen of top has no room for the bytes of all readers, which moved adds.
func writeStatus(t io.Writer, r *Row, moved bool) {
	s := r.Told
	rate, second := Rates{}, r.Rates != nil // one sample has no rates
	if second {
		rate = *r.Rates
	}
	fmt.Fprintf(t, "  source\t%s, daemon %d since %s\n", cli.Printable(s.Source), s.PID, s.Started.UTC().Format(time.RFC3339))
	if second {
		fmt.Fprintf(t, "  opens\t%.0f/s by passthrough (%d open now), %.0f/s through the daemon (%d open now)\n", rate.PassthroughOpens, s.OpenFiles.Passthrough, rate.DaemonOpens, s.OpenFiles.Daemon)
	} else {
		fmt.Fprintf(t, "  opens\t%d by passthrough (%d open now), %d through the daemon (%d open now)\n", s.Counters.PassthroughOpens, s.OpenFiles.Passthrough, s.Counters.CachedOpens, s.OpenFiles.Daemon)
	}
	if s.Log != "" {
		fmt.Fprintf(t, "  log\t%s\n", cli.Printable(s.Log))
	}
	for _, note := range s.Notes {
		fmt.Fprintf(t, "  note\t%s\n", cli.Printable(note))
	}
	if !s.Passthrough.On {
		fmt.Fprintf(t, "  no passthrough\t%s\n", cli.Printable(s.Passthrough.Why))
	} else if s.Passthrough.Failures > 0 {
		fmt.Fprintf(t, "  passthrough\tthe kernel refused %d files, last: %s\n", s.Passthrough.Failures, cli.Printable(s.Passthrough.LastErr))
	}
	writeHolder(t, &s.Handover)
	if c := s.Cache; c != nil {
		fmt.Fprintf(t, "  cache\t%s of %s, %s in use", size.Decimal(c.Bytes), size.Decimal(c.Limit), size.Decimal(c.Pinned))
		if second {
			fmt.Fprintf(t, "; %s/s hit, %s/s fetched, %s/s uncached", size.Decimal(int64(rate.CacheHitBytes)), size.Decimal(int64(rate.FetchedBytes)), size.Decimal(int64(rate.UncachedBytes)))
		}
		fmt.Fprintln(t)
		if c.Sick {
			fmt.Fprintf(t, "  cache is sick\t%s\n", cli.Printable(c.Why))
		}
	}
	writeOrigin(t, r)
	writeCheckpoints(t, s.Checkpoints)
	WriteKV(t, s.KV, false)
	if !s.Control.On && s.Control.Why != "" {
		fmt.Fprintf(t, "  no control socket\t%s\n", cli.Printable(s.Control.Why))
	}
	if len(s.Control.Clients) > 0 {
		fmt.Fprintf(t, "  readers\t%d connected, with %d files of the source\n", s.Control.Readers, s.Control.Leases)
	}
	if moved {
		writeMoved(t, s.Control.Clients)
	}
	for i, c := range rate.Readers {
		if i == topReaders {
			fmt.Fprintf(t, "  \t... and %d more (--json has all)\n", len(rate.Readers)-i)
			break
		}
		fmt.Fprintf(t, "  \t%s: %s/s %s%s\n", cli.Printable(c.Name), size.Decimal(int64(c.Bytes)), cli.Printable(c.Path), reasonText(c.Reason))
	}
	if s.Counters.Errors > 0 {
		fmt.Fprintf(t, "  errors\t%s, since the daemon began; the log names the files\n", errnoText(s.Counters.ErrorsByErrno))
	}
}

// writeHolder writes who keeps the mount when its daemon ends, and how often that was needed.
func writeHolder(t io.Writer, h *status.Handover) {
	who := h.Holder
	if h.PID > 0 { // systemd's is not told
		who = fmt.Sprintf("%s (pid %d)", who, h.PID)
	}
	switch {
	case h.Why != "":
		fmt.Fprintf(t, "  no holder\t%s: the mount ends with its daemon\n", cli.Printable(h.Why))
	case h.Holder != "" && h.Count == 0:
		fmt.Fprintf(t, "  holder\t%s keeps the mount when its daemon ends; this is the first daemon\n", who)
	case h.Holder != "":
		fmt.Fprintf(t, "  holder\t%s keeps the mount when its daemon ends; the daemon was replaced %d times, %d of them after a crash, and readers waited %.0f ms the last time, %.0f ms at most\n",
			who, h.Count, h.Crashes, 1000*h.LastStandstill, 1000*h.WorstStandstill)
	}
}

// writeMoved writes how many bytes readers have moved by which path and why, and those of fields of samples.
func writeMoved(t io.Writer, clients []status.Client) {
	var lines []string
	for _, c := range clients {
		for _, p := range c.Choices {
			lines = append(lines, fmt.Sprintf("%s: %s %s%s", cli.Printable(c.Name), size.Decimal(p.Bytes), cli.Printable(p.Path), reasonText(p.Reason)))
		}
		for _, f := range c.Fields {
			lines = append(lines, fmt.Sprintf("%s: %s %s of field %s", cli.Printable(c.Name), size.Decimal(f.Bytes), cli.Printable(f.Path), cli.Printable(f.Field)))
		}
	}
	for i, line := range lines {
		if i == topReaders {
			fmt.Fprintf(t, "  \t... and %d more (--json has all)\n", len(lines)-i)
			return
		}
		fmt.Fprintf(t, "  \t%s\n", line)
	}
}

// topReaders is how many lines the readers of a mount get.
const topReaders = 10

func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + cli.Printable(reason) + ")"
}

func errnoText(byErrno map[string]int64) string {
	var parts []string
	for _, errno := range slices.Sorted(maps.Keys(byErrno)) {
		if byErrno[errno] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", byErrno[errno], cli.Printable(errno)))
		}
	}
	return strings.Join(parts, ", ")
}

// writeOrigin writes the requests to a remote source, and to the caches before it.
func writeOrigin(t io.Writer, r *Row) {
	o := r.Told.Origin
	if o == nil {
		return
	}
	if rate := r.Rates; rate != nil {
		fmt.Fprintf(t, "  origin\t%.0f requests/s, %s/s; since the mount %d retried, %d stalled, %d given up\n", rate.OriginRequests, size.Decimal(int64(rate.OriginBytes)), o.Retries, o.Stalls, o.Failed)
	} else {
		fmt.Fprintf(t, "  origin\t%s requests, %s; %d retried, %d stalled, %d given up\n", size.Grouped(o.Requests), size.Decimal(o.Bytes), o.Retries, o.Stalls, o.Failed)
	}
	for _, e := range o.Endpoints {
		fmt.Fprintf(t, "  \t%s: %s requests, %s; %d failed, %d late, %d wrong", cli.Printable(e.Name), size.Grouped(e.Requests), size.Decimal(e.Bytes), e.Failed, e.Late, e.Wrong)
		if e.Out != "" {
			fmt.Fprintf(t, "; passed over: %s", cli.Printable(e.Out))
		}
		fmt.Fprintln(t)
	}
	writeLatency(t, r)
}

// writeLatency writes how long answers of the origin take, and the histogram since the mount.
func writeLatency(t io.Writer, r *Row) {
	l, when := r.Answers, "now"
	if l == nil {
		l, when = LatencyOf(r.Told.Origin.Latency, nil), "since the mount"
	}
	if l == nil {
		return
	}
	bounds := status.LatencyBounds()
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	fmt.Fprintf(t, "  answers\thalf within %v, 99%% within %v, slowest %v (%s)\n", seconds(l.P50), seconds(l.P99), seconds(l.Slowest), when)
	fmt.Fprintf(t, "  \t%v %s over %v\n", bounds[0], bars(r.Told.Origin.Latency), bounds[len(bounds)-1])
}

// bars draws counts, each as a part of the largest. Only counts other than zero are shown.
func bars(counts []int64) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	most := slices.Max(append([]int64{1}, counts...))
	var b strings.Builder
	for _, n := range counts {
		switch {
		case n <= 0:
			b.WriteRune('·')
		default:
			b.WriteRune(levels[int(float64(len(levels)-1)*float64(n)/float64(most))])
		}
	}
	return b.String()
}

// shorten cuts the beginning of a path, whose end tells mounts apart.
func shorten(path string, most int) string {
	runes := []rune(cli.Printable(path))
	if len(runes) <= most {
		return string(runes)
	}
	return "…" + string(runes[len(runes)-most+1:])
}
