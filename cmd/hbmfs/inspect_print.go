package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/hbmfs/hbmfs/internal/commands/inspect"
	"github.com/hbmfs/hbmfs/internal/commands/top"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// write prints the result for people: a table of the sets, their notes and views, then the problems.
func (c *inspectCommand) write(r *inspect.Report) {
	w := c.stdout
	fmt.Fprintf(w, "%s: %s files, %s", top.Printable(r.Source), size.Grouped(int64(r.Objects)), size.Decimal(r.Bytes))
	if r.Raw > 0 {
		fmt.Fprintf(w, " (%s files of no recognized format, served as they are)", size.Grouped(int64(r.Raw)))
	}
	fmt.Fprint(w, "\n")
	if len(r.Sets) > 0 {
		t := c.table("\nSET\tFORMAT\tDTYPE\tSHARDS\tTOKENS\tDOCUMENTS\tSAMPLES\tSIZE\tALIGN")
		for _, s := range r.Sets {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", top.Printable(placeOf(&s)), s.Format, known(s.DType.String()), size.Grouped(int64(len(s.Shards))),
				size.Grouped(s.Tokens), size.Grouped(s.Documents), size.Grouped(s.Samples), size.Decimal(s.Bytes), alignment(s.Alignment))
		}
		t.Flush()
	}
	for _, s := range r.Sets {
		printSet(w, &s)
	}
	if r.Verified != nil {
		fmt.Fprintf(w, "\nverified: %s files, %s read and compared with the manifest\n", size.Grouped(int64(r.Verified.Files)), size.Decimal(r.Verified.Bytes))
	}
	if len(r.Problems) == 0 {
		fmt.Fprint(w, "\nno problems found\n")
		return
	}
	fmt.Fprintf(w, "\n%s problems:\n", size.Grouped(int64(len(r.Problems))))
	for _, p := range r.Problems {
		fmt.Fprintf(w, "  %s\n", top.Printable(p.String()))
	}
}

func printSet(w io.Writer, s *inspect.Set) {
	if len(s.Notes) == 0 && len(s.Views) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s (%s)\n", top.Printable(placeOf(s)), s.Format)
	for _, note := range s.Notes {
		fmt.Fprintf(w, "  note: %s\n", top.Printable(note))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	for _, v := range s.Views {
		switch {
		case v.Absent != "":
			fmt.Fprintf(t, "  no %s\t%s\n", top.Printable(v.Path), top.Printable(v.Absent))
		case v.Entries > 0:
			fmt.Fprintf(t, "  view %s/\t%s in %s files\n", top.Printable(v.Path), size.Decimal(v.Size), size.Grouped(int64(v.Entries)))
		default:
			fmt.Fprintf(t, "  view %s\t%s\n", top.Printable(v.Path), size.Decimal(v.Size))
		}
	}
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
