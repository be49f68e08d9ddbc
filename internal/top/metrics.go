package top

import (
	"fmt"
	"io"

	"github.com/hbmfs/hbmfs/internal/aside"
	"github.com/hbmfs/hbmfs/internal/promtext"
)

// WriteMetrics writes the metrics of all mounts as one page: each sample with the label mount. hbmfs_up says which mounts
// answered: the others have nothing else.
func WriteMetrics(w io.Writer, samples []Sample) error {
	labels, up := make([]string, len(samples)), make([]string, len(samples))
	for i, s := range samples {
		labels[i] = "mount=" + promtext.Quote(s.Points[0])
		up[i] = fmt.Sprintf("{%s} %d", labels[i], map[bool]int{true: 1}[s.State == aside.OK])
	}
	var p promtext.Page
	p.Metric("hbmfs_up", "gauge", "1 where the daemon of a mount answers.", up...)
	for i, s := range samples {
		p.Add(string(s.Text), labels[i])
	}
	_, err := io.WriteString(w, p.String())
	return err
}
