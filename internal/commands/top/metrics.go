package top

import (
	"io"

	"github.com/hbmfs/hbmfs/internal/observe/promtext"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// WriteMetrics writes the metrics of all mounts as one page: each sample with the label mount. hbmfs_up says which mounts
// answered: the others have no other metric.
func WriteMetrics(w io.Writer, samples []Sample) error {
	page := promtext.Page{Terse: true}
	up := page.Up()
	for _, s := range samples {
		up.Add(s.State == aside.OK, "mount", s.Points[0])
		page.Merge(string(s.Text), "mount", s.Points[0])
	}
	_, err := io.WriteString(w, page.String())
	return err
}
