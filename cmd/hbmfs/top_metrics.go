package main

import (
	"fmt"
	"io"
	"strings"
)

// writeMetrics writes the metrics of all mounts as one page: each sample with the label mount, all samples of a metric
// together, as the format wants it. hbmfs_up says which mounts answered: the
// others have nothing else.
func writeMetrics(w io.Writer, samples []mountSample) error {
	type family struct{ help, kind, body string }
	families := map[string]*family{"hbmfs_up": {help: "# HELP hbmfs_up 1 where the daemon of a mount answers.\n", kind: "# TYPE hbmfs_up gauge\n"}}
	order := []string{"hbmfs_up"}
	for _, s := range samples {
		label := `mount="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s.points[0], "\uFFFD")) + `"`
		families["hbmfs_up"].body += fmt.Sprintf("hbmfs_up{%s} %d\n", label, map[bool]int{true: 1}[s.State == stateOK])
		var current *family
		for line := range strings.Lines(string(s.Text)) {
			words := strings.SplitN(line, " ", 4)
			if words[0] != "#" {
				if current != nil {
					current.body += labelled(line, label)
				}
				continue
			}
			if len(words) < 4 {
				continue
			}
			name := words[2]
			if current = families[name]; current == nil {
				current = &family{}
				families[name] = current
				order = append(order, name)
			}
			switch { // said once, whatever daemons of other versions say
			case words[1] == "HELP" && current.help == "":
				current.help = line
			case words[1] == "TYPE" && current.kind == "":
				current.kind = line
			}
		}
	}
	for _, name := range order {
		if f := families[name]; f.body != "" {
			if _, err := io.WriteString(w, f.help+f.kind+f.body); err != nil {
				return err
			}
		}
	}
	return nil
}

// labelled adds a label to a sample's others. Names of metrics have no brace and no space.
func labelled(sample, label string) string {
	i := strings.IndexAny(sample, "{ ")
	switch {
	case i < 0:
		return sample
	case sample[i] == '{':
		return sample[:i+1] + label + "," + sample[i+1:]
	}
	return sample[:i] + "{" + label + "}" + sample[i:]
}
