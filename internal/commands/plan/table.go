package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Print writes the report as tables for a terminal.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "A model, not a measurement: ranges are low to high. Calibrated by %s.\n", r.Calibration.Source)
	for i := range r.Nodes {
		r.Nodes[i].print(w)
	}
	r.printCompared(w)
	r.printRegistration(w)
}

func (r *Report) printCompared(w io.Writer) {
	if len(r.Compared) == 0 {
		return
	}
	fmt.Fprint(w, "\nThe nodes beside each other, each by its fastest path\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "JOB\tNODE\tPATH\tTIME\tCOST\tBY PLAIN\n")
	for _, c := range r.Compared {
		cost := "-"
		if c.Cost.Mid > 0 {
			cost = c.Cost.String() + " " + c.Currency
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", c.Job, c.Node, c.Path, duration(c.Time), cost, duration(c.Plain))
	}
	t.Flush()
}

func (n *NodeReport) print(w io.Writer) {
	gpus := "GPUs"
	if n.GPUs == 1 {
		gpus = "GPU"
	}
	fmt.Fprintf(w, "\n%s: %d %s", n.Name, n.GPUs, gpus)
	if n.Source != "" {
		fmt.Fprintf(w, "; from %s", n.Source)
	}
	fmt.Fprintln(w)
	for _, note := range n.Notes {
		fmt.Fprintf(w, "  %s\n", note)
	}
	n.printContention(w)
	n.printJobs(w)
}

// columns are the numbers of GPUs that a terminal has room for.
func columns(gpus int) []int {
	var list []int
	for i := 1; i < gpus; i *= 2 {
		list = append(list, i)
	}
	return append(list, gpus)
}

func (n *NodeReport) printContention(w io.Writer) {
	fmt.Fprint(w, "\nGB/s of all GPUs together, by how many read at once\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "PATH\tFROM\t")
	for _, gpus := range columns(n.GPUs) {
		fmt.Fprintf(t, "%d\t", gpus)
	}
	fmt.Fprint(t, "BEST\tBINDS WITH ALL\n")
	for _, s := range n.Sweeps {
		fmt.Fprintf(t, "%s\t%s\t", s.Path, s.From)
		if s.Without != "" {
			fmt.Fprintf(t, "%s-\t%s\n", strings.Repeat("-\t", len(columns(n.GPUs))), s.Without)
			continue
		}
		for _, gpus := range columns(n.GPUs) {
			at := slices.IndexFunc(s.Points, func(p SweepPoint) bool { return p.GPUs == gpus })
			fmt.Fprintf(t, "%s\t", s.Points[at].Aggregate)
		}
		fmt.Fprintf(t, "%d\t%s\n", s.Best, brief(s.Points[len(s.Points)-1].Binds))
	}
	t.Flush()
}

// brief names the first of many.
func brief(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s, and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func (n *NodeReport) printJobs(w io.Writer) {
	for _, j := range n.Jobs {
		fmt.Fprintf(w, "\n%s: %s of %s", j.Job.Name, j.Job.Kind, j.Job.Size)
		if j.Job.Passes > 1 {
			fmt.Fprintf(w, ", %d passes", j.Job.Passes)
		}
		if j.Job.Cached {
			fmt.Fprint(w, ", from the page cache")
		}
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(t, "PATH\tGB/s\tTIME\tCOST\tTIMES FASTER\tREMARKS\n")
		for i := range j.Paths {
			p := &j.Paths[i]
			if p.Without != "" {
				fmt.Fprintf(t, "%s\t-\t-\t-\t-\t%s\n", p.Path, p.Without)
				continue
			}
			cost := "-"
			if n.Price > 0 {
				cost = p.Cost.String() + " " + n.Currency
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Path, p.Rate, duration(p.Time), cost, p.Faster, strings.Join(p.remarks(), "; "))
		}
		t.Flush()
	}
}

func (p *JobPath) remarks() []string {
	var list []string
	switch {
	case p.Stall != nil && p.Stall.High == 0:
		list = append(list, "the GPUs never wait")
	case p.Stall != nil:
		list = append(list, "GPUs wait "+duration(*p.Stall))
	}
	if p.Fits != "" {
		list = append(list, "fits the notice: "+p.Fits)
	}
	if p.Restore != nil {
		list = append(list, "restore "+duration(*p.Restore))
	}
	if p.Share != nil {
		list = append(list, p.Share.scale(100).String()+"% of all time")
	}
	if p.Best != nil {
		list = append(list, "best interval "+duration(*p.Best))
	}
	return append(list, "binds: "+brief(p.Binds))
}

func (r *Report) printRegistration(w io.Writer) {
	fmt.Fprint(w, "\nRegistering: part of the time that moves bytes, R, for buffers of 1 MiB, and I/Os until R = 0.9\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "MEMORY\tLINK GB/s\tR OF 1 I/O\t4\t16\t64\tUNTIL 0.9: 64 KiB\t1 MiB\t16 MiB\t256 MiB\n")
	for _, s := range r.Registration {
		fmt.Fprintf(t, "%s\t%g", s.Registration.Name, s.Link)
		for _, n := range []float64{1, 4, 16, 64} {
			fmt.Fprintf(t, "\t%.2f", s.Registration.Efficiency(1<<20, n, s.Link))
		}
		for _, bytes := range []int64{64 << 10, 1 << 20, 16 << 20, 256 << 20} {
			fmt.Fprintf(t, "\t%d", s.Registration.BreakEven(bytes, s.Link, s.Wanted))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}
