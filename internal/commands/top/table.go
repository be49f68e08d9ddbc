package top

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// WriteTable writes one line for each mount, under a line of headings.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MOUNT\tSTATE\tPASSTHROUGH\tOPEN\tOPENS/S\tSPLICE/S\tCOPY/S\tREADERS/S\tORIGIN/S\tCACHE\tERRORS")
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(t, "%s\t%s", shorten(r.MountPoint, 40), r.State)
		if s := r.Told; s != nil {
			passthrough := map[bool]string{true: "on", false: "off"}[s.Passthrough.On]
			fmt.Fprintf(t, "\t%s\t%d\t%s\t%s\t%d\n", passthrough, s.OpenFiles.Passthrough+s.OpenFiles.Daemon, rateCells(r), cacheCell(r), s.Counters.Errors)
		} else {
			fmt.Fprintln(t, strings.Repeat("\t-", 9))
		}
	}
	return t.Flush()
}

func rateCells(r *Row) string {
	if r.Rates == nil {
		return strings.Repeat("-\t", 4) + "-"
	}
	x := r.Rates
	cells := []string{fmt.Sprintf("%.0f", x.PassthroughOpens+x.DaemonOpens)}
	for _, n := range []float64{x.SplicedBytes, x.CopiedBytes, x.ReaderBytes} {
		cells = append(cells, size.Decimal(int64(n)))
	}
	if r.Told.Origin == nil {
		return strings.Join(append(cells, "-"), "\t")
	}
	return strings.Join(append(cells, size.Decimal(int64(x.OriginBytes))), "\t")
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

// WriteDetails writes what a mount's line has no room for.
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
		fmt.Fprintf(t, "  %s\t%s\n", r.State, Printable(r.Error))
	}
	if r.Told != nil {
		writeStatus(t, r)
	}
	return t.Flush()
}

func writeStatus(t io.Writer, r *Row) {
	s := r.Told
	rate, second := Rates{}, r.Rates != nil // one sample has no rates
	if second {
		rate = *r.Rates
	}
	fmt.Fprintf(t, "  source\t%s, daemon %d since %s\n", Printable(s.Source), s.PID, s.Started.UTC().Format(time.RFC3339))
	if second {
		fmt.Fprintf(t, "  opens\t%.0f/s passthrough, %.0f/s through the daemon; open now %d and %d\n", rate.PassthroughOpens, rate.DaemonOpens, s.OpenFiles.Passthrough, s.OpenFiles.Daemon)
	} else {
		fmt.Fprintf(t, "  opens\t%d passthrough, %d through the daemon; open now %d and %d\n", s.Counters.PassthroughOpens, s.Counters.CachedOpens, s.OpenFiles.Passthrough, s.OpenFiles.Daemon)
	}
	for _, note := range s.Notes {
		fmt.Fprintf(t, "  note\t%s\n", Printable(note))
	}
	if !s.Passthrough.On {
		fmt.Fprintf(t, "  no passthrough\t%s\n", Printable(s.Passthrough.Why))
	} else if s.Passthrough.Failures > 0 {
		fmt.Fprintf(t, "  passthrough\tthe kernel refused %d files, last: %s\n", s.Passthrough.Failures, Printable(s.Passthrough.LastErr))
	}
	if h := s.Handover; h.Why != "" {
		fmt.Fprintf(t, "  no holder\t%s: the mount ends with its daemon\n", Printable(h.Why))
	} else if h.Holder != "" {
		fmt.Fprintf(t, "  holder\t%s (pid %d); %d daemons went on with the mount, %d after a crash; readers waited %.0f ms, at most %.0f ms\n",
			h.Holder, h.PID, h.Count, h.Crashes, 1000*h.LastStandstill, 1000*h.WorstStandstill)
	}
	if c := s.Cache; c != nil {
		fmt.Fprintf(t, "  cache\t%s of %s, %s in use", size.Decimal(c.Bytes), size.Decimal(c.Limit), size.Decimal(c.Pinned))
		if second {
			fmt.Fprintf(t, "; %s/s hit, %s/s fetched, %s/s uncached", size.Decimal(int64(rate.CacheHitBytes)), size.Decimal(int64(rate.FetchedBytes)), size.Decimal(int64(rate.UncachedBytes)))
		}
		fmt.Fprintln(t)
		if c.Sick {
			fmt.Fprintf(t, "  cache is sick\t%s\n", Printable(c.Why))
		}
	}
	writeOrigin(t, r)
	writeCheckpoints(t, s.Checkpoints)
	WriteKV(t, s.KV, false)
	if !s.Control.On && s.Control.Why != "" {
		fmt.Fprintf(t, "  no control socket\t%s\n", Printable(s.Control.Why))
	}
	if len(s.Control.Clients) > 0 {
		fmt.Fprintf(t, "  readers\t%d connected, with %d files of the source\n", s.Control.Readers, s.Control.Leases)
	}
	for i, c := range rate.Readers {
		if i == topReaders {
			fmt.Fprintf(t, "  \t... and %d more (--json has all)\n", len(rate.Readers)-i)
			break
		}
		fmt.Fprintf(t, "  \t%s: %s/s %s%s\n", Printable(c.Name), size.Decimal(int64(c.Bytes)), Printable(c.Path), reasonText(c.Reason))
	}
	if s.Counters.Errors > 0 {
		fmt.Fprintf(t, "  errors\t%s; the log names the files\n", errnoText(s.Counters.ErrorsByErrno))
	}
}

// topReaders is how many lines the readers of a mount get.
const topReaders = 10

func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + Printable(reason) + ")"
}

func errnoText(byErrno map[string]int64) string {
	var parts []string
	for _, errno := range slices.Sorted(maps.Keys(byErrno)) {
		if byErrno[errno] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", byErrno[errno], Printable(errno)))
		}
	}
	return strings.Join(parts, ", ")
}

// writeOrigin writes what was asked of a remote source, and of the caches before it.
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
		fmt.Fprintf(t, "  \t%s: %s requests, %s; %d failed, %d late, %d wrong", Printable(e.Name), size.Grouped(e.Requests), size.Decimal(e.Bytes), e.Failed, e.Late, e.Wrong)
		if e.Out != "" {
			fmt.Fprintf(t, "; passed over: %s", Printable(e.Out))
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
	bounds := fetch.Bounds()
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	fmt.Fprintf(t, "  answers\thalf within %v, 99%% within %v, slowest %v (%s)\n", seconds(l.P50), seconds(l.P99), seconds(l.Slowest), when)
	fmt.Fprintf(t, "  \t%v %s over %v\n", bounds[0], bars(r.Told.Origin.Latency), bounds[len(bounds)-1])
}

// bars draws counts, each as a part of the largest. What is not zero is seen.
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

// Printable makes text harmless for a terminal: names of readers, paths and reasons are made by others.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// shorten cuts the beginning of a path, whose end tells mounts apart.
func shorten(path string, most int) string {
	runes := []rune(Printable(path))
	if len(runes) <= most {
		return string(runes)
	}
	return "…" + string(runes[len(runes)-most+1:])
}
