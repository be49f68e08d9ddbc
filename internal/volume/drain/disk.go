package drain

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// disk watches the writes to the disk of a directory. The drain itself only reads there.
type disk struct {
	stat string // of its block device in sysfs; "" where it has none

	mu      sync.Mutex // guards the fields below
	looked  time.Time
	sectors int64
	writes  float64 // bytes a second: follows a rise at once, and a fall in a second or two
	knows   bool    // it has looked twice
}

const (
	lookTime = 100 * time.Millisecond // the least time between two looks at others' writes
	lookSpan = time.Second            // in which the rate follows a fall

	// The default bound: while others write this much a second, the drain takes a fraction of that, but never less than the least.
	busyFrom   = 16 << 20
	busyShare  = 0.05
	busyLeast  = 16 << 20
	blindBound = 256 << 20 // where the writes cannot be counted
	sectorSize = 512       // of all counts in /sys/block/*/stat, on any disk
)

func openDisk(dir string) *disk {
	info, err := os.Stat(dir)
	if err != nil {
		return &disk{}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return &disk{}
	}
	path := fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev))
	d := &disk{stat: path, looked: time.Now()}
	if d.sectors, ok = written512(path); !ok {
		return &disk{}
	}
	return d
}

// bound is the rate of the drain now, bytes a second; 0 for no bound.
func (d *disk) bound() int64 {
	if d.stat == "" {
		return blindBound
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if since := time.Since(d.looked); since >= lookTime {
		if sectors, ok := written512(d.stat); ok && sectors >= d.sectors {
			rate := float64((sectors-d.sectors)*sectorSize) / since.Seconds()
			d.writes = max(rate, d.writes+(rate-d.writes)*min(1, since.Seconds()/lookSpan.Seconds()))
			d.sectors, d.knows = sectors, true
		}
		d.looked = time.Now()
	}
	if d.knows && d.writes < busyFrom {
		return 0
	}
	return max(busyLeast, int64(d.writes*busyShare))
}

// written512 reads how many sectors were written (Documentation/block/stat.rst, field 7).
func written512(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(text))
	if len(fields) < 7 {
		return 0, false
	}
	n, err := strconv.ParseInt(fields[6], 10, 64)
	return n, err == nil
}
