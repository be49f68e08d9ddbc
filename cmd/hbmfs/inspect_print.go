package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/hbmfs/hbmfs/internal/commands/inspect"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// write prints the result for people: a table of the sets, their notes and views, then the problems.
func (c *inspectCommand) write(r *inspect.Report) {
	w := c.stdout
	fmt.Fprintf(w, "%s: %s files, %s", cli.Printable(r.Source), size.Grouped(int64(r.Objects)), size.Decimal(r.Bytes))
	if r.Raw > 0 {
		fmt.Fprintf(w, " (%s files of no recognized format, served as they are)", size.Grouped(int64(r.Raw)))
	}
	fmt.Fprint(w, "\n")
	if len(r.Sets) > 0 {
		t := c.table("\nSET\tFORMAT\tDTYPE\tSHARDS\tTOKENS\tDOCUMENTS\tSAMPLES\tSIZE\tALIGN")
		for _, s := range r.Sets {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.Printable(placeOf(&s)), s.Format, known(s.DType.String()), size.Grouped(int64(len(s.Shards))),
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
	for _, h := range r.Hints {
		fmt.Fprintf(w, "\nnot shown: %s\n", cli.Printable(h.String()))
	}
	if len(r.Problems) == 0 {
		fmt.Fprint(w, "\nno problems found\n")
		return
	}
	fmt.Fprintf(w, "\n%s problems:\n", size.Grouped(int64(len(r.Problems))))
	for _, p := range r.Problems {
		fmt.Fprintf(w, "  %s\n", cli.Printable(p.String()))
	}
}

func printSet(w io.Writer, s *inspect.Set) {
	if len(s.Notes) == 0 && len(s.Views) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s (%s)\n", cli.Printable(placeOf(s)), s.Format)
	for _, note := range s.Notes {
		fmt.Fprintf(w, "  note: %s\n", cli.Printable(note))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	absent := map[string][]string{} // views by why there is none
	for _, v := range s.Views {
		if v.Absent != "" {
			absent[v.Absent] = append(absent[v.Absent], v.Path)
		}
	}
	for _, v := range s.Views {
		switch {
		case v.Absent != "" && absent[v.Absent] == nil: // it is told
		case v.Absent != "":
			fmt.Fprintf(t, "  no %s\t%s\n", cli.Printable(strings.Join(absent[v.Absent], ", ")), cli.Printable(v.Absent))
			absent[v.Absent] = nil
		case v.Entries > 0:
			fmt.Fprintf(t, "  view %s/\t%s in %s files\n", cli.Printable(v.Path), size.Decimal(v.Size), size.Grouped(int64(v.Entries)))
		default:
			fmt.Fprintf(t, "  view %s\t%s\n", cli.Printable(v.Path), size.Decimal(v.Size))
		}
	}
	for _, f := range s.Fields {
		if f.Missing != "" {
			fmt.Fprintf(t, "  no field %s\t%s\n", cli.Printable(f.Name), cli.Printable(f.Missing))
			continue
		}
		form := f.DType
		if len(f.Shape) > 0 {
			form += " " + strings.ReplaceAll(fmt.Sprint(f.Shape), " ", ", ")
		}
		fmt.Fprintf(t, "  field %s\t%s, %s %s\n", cli.Printable(f.Name), size.Decimal(f.Bytes), f.Kind, form)
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
