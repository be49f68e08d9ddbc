package crew

import "github.com/hbmfs/hbmfs/internal/driver"

// Destination is memory of the device that bytes go to.
type Destination struct {
	HBM   driver.Pointer // of the first byte, on a GPU
	Host  []byte         // on the host
	After driver.Handle  // an event that streams wait for before they write; 0 for none
}

// Ready lets what a worker starts from here on wait for what must be done before.
func (d *Destination) Ready(w *Worker) error {
	if d.After == 0 {
		return nil
	}
	return w.CUDA.StreamWait(w.Stream, d.After)
}
