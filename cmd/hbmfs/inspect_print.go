package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/hbmfs/hbmfs/internal/inspect"
)

// printInspection writes the result for people: a table of the sets, their notes and views, then the problems.
func printInspection(w io.Writer, r *inspect.Report) error {
	fmt.Fprintf(w, "%s: %s files, %s", r.Source, grouped(int64(r.Objects)), byteCount(r.Bytes))
	if r.Raw > 0 {
		fmt.Fprintf(w, " (%s files of no recognized format, served as they are)", grouped(int64(r.Raw)))
	}
	fmt.Fprint(w, "\n")
	if len(r.Sets) > 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(t, "\nSET\tFORMAT\tDTYPE\tSHARDS\tTOKENS\tDOCUMENTS\tSAMPLES\tSIZE\tALIGN\n")
		for _, s := range r.Sets {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", placeOf(&s), s.Format, known(s.DType.String()), grouped(int64(len(s.Shards))),
				grouped(s.Tokens), grouped(s.Documents), grouped(s.Samples), byteCount(s.Bytes), alignment(s.Alignment))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, s := range r.Sets {
		if err := printSet(w, &s); err != nil {
			return err
		}
	}
	if r.Verified != nil {
		fmt.Fprintf(w, "\nverified: %s files, %s read and compared with the manifest\n", grouped(int64(r.Verified.Files)), byteCount(r.Verified.Bytes))
	}
	if len(r.Problems) == 0 {
		_, err := fmt.Fprint(w, "\nno problems found\n")
		return err
	}
	fmt.Fprintf(w, "\n%s problems:\n", grouped(int64(len(r.Problems))))
	for _, p := range r.Problems {
		fmt.Fprintf(w, "  %s\n", p)
	}
	return nil
}

func printSet(w io.Writer, s *inspect.Set) error {
	if len(s.Notes) == 0 && len(s.Views) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s (%s)\n", placeOf(s), s.Format)
	for _, note := range s.Notes {
		fmt.Fprintf(w, "  note: %s\n", note)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range s.Views {
		switch {
		case v.Absent != "":
			fmt.Fprintf(t, "  no %s\t%s\n", v.Path, v.Absent)
		case v.Entries > 0:
			fmt.Fprintf(t, "  view %s/\t%s in %s files\n", v.Path, byteCount(v.Size), grouped(int64(v.Entries)))
		default:
			fmt.Fprintf(t, "  view %s\t%s\n", v.Path, byteCount(v.Size))
		}
	}
	return t.Flush()
}

// placeOf is the place of a set: its directory, and its split where there are several.
func placeOf(s *inspect.Set) string {
	name := s.Dir
	if name == "" {
		name = "."
	}
	if s.Split != "" {
		name += " [" + s.Split + "]"
	}
	return name
}

func known(s string) string {
	if s == "unknown" {
		return "-"
	}
	return s
}

func alignment(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// grouped writes a count with commas, and one that is not known as a dash.
func grouped(n int64) string {
	if n < 0 {
		return "-"
	}
	digits := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// byteCount writes bytes in decimal units, as disks are sold and rates are quoted.
func byteCount(n int64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n)/unit, "kMGTPE"
	i := 0
	for ; value >= unit && i < len(units)-1; i++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %cB", value, units[i])
}
