package check

import (
	"fmt"
	"io"
	"strings"
)

// Print writes the report for people: one line for each finding, and the fix where one is not OK.
func (r *Report) Print(w io.Writer) {
	group := ""
	width := 0
	for _, f := range r.Findings {
		width = max(width, len(f.Name))
	}
	for _, f := range r.Findings {
		if f.Group != group {
			group = f.Group
			fmt.Fprintln(w, group)
		}
		fmt.Fprintf(w, "  %-7s  %-*s  %s\n", f.Level, width, f.Name, f.Found)
		indent := strings.Repeat(" ", 2+7+2+width+2)
		if f.Why != "" {
			fmt.Fprintf(w, "%s%s\n", indent, f.Why)
		}
		if f.Fix != "" {
			fmt.Fprintf(w, "%sfix: %s\n", indent, f.Fix)
		}
	}
	for i, n := range r.Nearest {
		if i == 0 {
			fmt.Fprintln(w, "nearest GPU")
		}
		fmt.Fprintf(w, "  %-9s NUMA node %-8s gpu %d (%s)\n", n.Device, node(n.NUMA), n.GPU, n.Distance)
	}
	if r.Policy != "" {
		fmt.Fprintf(w, "ClusterPolicy\n  %s\n", strings.ReplaceAll(strings.TrimSpace(r.Policy), "\n", "\n  "))
	}
	about := "this machine"
	if r.Path != "" {
		about = r.Path
	}
	fmt.Fprintf(w, "\n%s, gpu %d: %s\n  %s\n", about, r.GPU, r.Verdict.Path, r.Verdict.Reason)
	if r.Verdict.Fix != "" {
		fmt.Fprintf(w, "  fix: %s\n", r.Verdict.Fix)
	}
}
