package cufile

import (
	"context"
	"slices"

	"github.com/hbmfs/hbmfs/cufile/internal/copied"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
)

// A cold batch has more than one row of so many that waits for the disk. Of a file that gave one, so many requests are read by threads, which
// wait for several rows at once. Then one looks whether its rows are in the page cache by now.
const (
	coldRows     = 8
	coldRequests = 32
)

// quickBytes are copied while a request begins: waking another thread takes as much CPU time as copying some hundred kilobytes.
const quickBytes = 512 << 10

// copiedAtOnce says whether the thread that begins a request copies its rows. They are few bytes, and the last request of each file found all of its own
// in the page cache.
func (s *scattering) copiedAtOnce() bool {
	return s.r.copied != nil && len(s.to.Host) <= quickBytes && !slices.ContainsFunc(s.files, func(f *File) bool { return !f.seen.Load() })
}

// copy copies rows that are mapped to memory of the host.
func (s *scattering) copy(ctx context.Context) (err error) {
	if err := s.look(); err != nil {
		return err
	}
	write := copied.Writer(nil)
	if s.to.Form != nil {
		write = s.to.Write
	}
	defer crew.OnFault(&err)()
	count, cold := 0, int64(0)
	for i, j := 0, 0; i < len(s.rows); i = j { // a Reader keeps its own mappings until its rows are copied, and numbers them
		of := s.parts[i].file.r
		for ; j < len(s.rows) && s.parts[j].file.r == of; j++ {
			count += len(s.rows[j].Spans)
		}
		cold += of.copied.MoveRows(s.to.Host, s.to.Element(), write, s.rows[i:j])
	}
	if cold > int64(count/coldRows) {
		for _, f := range s.files {
			f.cold.Store(coldRequests)
		}
	}
	return ctx.Err()
}

// cooling says whether threads read the rows of a request, since the file gave a cold batch lately.
func (f *File) cooling() bool { return f.cold.Load() > 0 && f.cold.Add(-1) >= 0 }

// onHost is why a request takes the host path.
const onHost = "the device is the host"
