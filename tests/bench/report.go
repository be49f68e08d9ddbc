package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// report is everything that one run measured.
type report struct {
	Machine     machine      `json:"machine"`
	Hbmfs       string       `json:"hbmfs"`
	MountFlags  string       `json:"mount_flags,omitempty"`
	Comparisons []comparison `json:"comparisons,omitempty"`
	Limits      []limit      `json:"limits,omitempty"`
}

// program names the measured program.
func (r *report) program() string {
	if r.MountFlags == "" {
		return r.Hbmfs
	}
	return r.Hbmfs + ", mounted with " + r.MountFlags
}

// missed names the cases whose target was not reached.
func (r *report) missed() []string {
	var names []string
	for _, c := range r.Comparisons {
		if !c.met() {
			names = append(names, c.Name)
		}
	}
	for _, l := range r.Limits {
		if !l.met() {
			names = append(names, l.Name)
		}
	}
	return names
}

// tables are the report's rows as text, ratio first; the first row of each block is its heading.
func (r *report) tables() (comparisons, limits [][]string) {
	if len(r.Comparisons) > 0 {
		comparisons = append(comparisons, []string{"case", "ratio", "target", "", "mount", "against", "runs"})
	}
	for _, c := range r.Comparisons {
		comparisons = append(comparisons, []string{
			c.Name, c.Ratio.format("%.3f", 1), fmt.Sprintf(">= %.2f", c.Target), verdict(c.met()),
			c.Mount.format("%.2f", 1e9) + " GB/s", c.Baseline.format("%.2f", 1e9) + " GB/s", fmt.Sprint(c.Ratio.Runs),
		})
	}
	if len(r.Limits) > 0 {
		limits = append(limits, []string{"case", "measured", "limit", "", "runs"})
	}
	for _, l := range r.Limits {
		promise := "none"
		if l.Limit > 0 {
			promise = fmt.Sprintf("< %g %s", l.Limit, l.Unit)
		}
		limits = append(limits, []string{
			l.Name, l.Value.format("%.3g", 1) + " " + l.Unit, promise, verdict(l.met()), fmt.Sprint(l.Value.Runs),
		})
	}
	return comparisons, limits
}

// format writes `median (min–max)`, each divided by unit.
func (s spread) format(verb string, unit float64) string {
	return fmt.Sprintf(verb+" ("+verb+"–"+verb+")", s.Median/unit, s.Min/unit, s.Max/unit)
}

func verdict(met bool) string {
	if met {
		return "ok"
	}
	return "MISSED"
}

// print writes the tables for a terminal.
func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "%s\n%s\n", r.program(), r.Machine)
	comparisons, limits := r.tables()
	for _, rows := range [][][]string{comparisons, limits} {
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintln(out)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		w.Flush()
	}
}

// save writes the JSON file and the documentation, each where it was asked for.
func (r *report) save(jsonFile, docs string) error {
	if jsonFile != "" {
		data, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
		if err := os.WriteFile(jsonFile, append(data, '\n'), 0o644); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	}
	if docs == "" {
		return nil
	}
	page := filepath.Join(docs, "benchmarks.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("write the documentation: %w", err)
	}
	before, rest, begins := strings.Cut(string(text), partBegins)
	_, after, ends := strings.Cut(rest, partEnds)
	if !begins || !ends {
		return fmt.Errorf("write the documentation: %s lacks the lines around the part of make bench: %s", page, partBegins)
	}
	if err := errors.Join(
		os.WriteFile(page, []byte(before+partBegins+"\n\n"+r.markdown()+partEnds+after), 0o644),
		os.WriteFile(filepath.Join(docs, "benchmarks.svg"), []byte(plot(r.Comparisons)), 0o644),
	); err != nil {
		return fmt.Errorf("write the documentation: %w", err)
	}
	return nil
}

// Lines of docs/benchmarks.md around the part that markdown makes. The rest of the page is written by hand.
const (
	partBegins = "<!-- make bench writes this part -->"
	partEnds   = "<!-- end of the part that make bench writes -->"
)

// markdown is the part of docs/benchmarks.md about the mount.
func (r *report) markdown() string {
	var b strings.Builder
	program, _, _ := strings.Cut(r.program(), "+g") // the commit of a build that is no release
	fmt.Fprintf(&b, "`make bench` writes this part, with the figures of your machine. Here %s ran on: %s.\n\n", program, r.Machine)
	comparisons, limits := r.tables()
	if len(comparisons) > 0 {
		b.WriteString(`![Ratios of mount to baseline](benchmarks.svg)

Ratios are mount over baseline, so 1 is "as fast" and more is better. The two sides run in turn (A B A B ...). A ratio is taken of
the two runs of one round: the median, then the smallest and the largest in brackets. The backing files are in the page cache, put
there by one sequential read. Each run reads as many bytes as the file has. Random offsets are any byte, the same on both sides.
A run through mmap maps the file anew. The first read of a view mounts anew for each run, so that the kernel has none of it cached.

`)
		markdownTable(&b, comparisons)
		b.WriteString("\nThe baseline of the first read is " + loopbackNote + "; all others read the same bytes from a plain file.\n\n" + smallPagesNote)
	}
	if len(limits) > 0 {
		b.WriteString("### Scale\n\nMounted anew for each run, with the source's directory entries in memory. Less is better.\n\n")
		markdownTable(&b, limits)
	}
	b.WriteString("\n")
	return b.String()
}

const smallPagesNote = `A passthrough read is checked twice by the kernel, once for each of its two files. That costs about 0.2 µs a call, which shows in
random reads of 8 KiB and nowhere else.

A view is a file that only FUSE has, and up to Linux 6.18 at least FUSE caches in pages of 4 KiB. Filesystems such as
ext4 (since Linux 6.16) and XFS cache in folios of up to megabytes, which are faster to copy and to map. The rows "against
pages of 4 KiB" take that difference out: their baseline is a file on tmpfs with huge=never. Views that are one whole
file, such as tokens.bin of a single Megatron prefix, are opened with passthrough and are whole files here.

`

const loopbackNote = "go-fuse's own loopback example with passthrough switched off"

func markdownTable(b *strings.Builder, rows [][]string) {
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
}
