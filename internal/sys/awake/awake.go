// Package awake keeps idle processors of this machine from sleeping while something is used at a high rate. Most of a round trip
// between two processes is the time that a sleeping processor takes to wake, above all in virtual machines.
//
// It asks for a latency of 0 on /dev/cpu_dma_latency (the kernel's Documentation/power/pm_qos_interface.rst), which only root may.
// All idle processors then turn in a loop, at the power of busy ones. The kernel forgets the wish when the process ends.
package awake

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const device = "/dev/cpu_dma_latency"

// Uses are many when burst of them come within a time of linger. Processors may sleep again after linger without so many.
const (
	burst  = 64
	linger = 100 * time.Millisecond
)

// Processors are the idle processors of this machine.
type Processors struct {
	device string
	uses   atomic.Int64

	mu    sync.Mutex // guards the fields below
	began time.Time  // when the uses began that are counted now
	fd    int        // of the device; -1 while processors may sleep
	sleep *time.Timer
}

// New returns an error where this process may not keep processors awake. To know that it does so for a moment.
func New() (*Processors, error) { return at(device) }

func at(device string) (*Processors, error) {
	p := &Processors{device: device, fd: -1}
	if err := p.hold(); err != nil {
		return nil, err
	}
	p.sleep = time.AfterFunc(linger, p.release)
	return p, nil
}

// Used counts a use. It may be called by several goroutines, and mostly costs an addition.
func (p *Processors) Used() {
	if p.uses.Add(1)%burst == 0 {
		p.used(time.Now())
	}
}

func (p *Processors) used(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	many := now.Sub(p.began) < linger
	p.began = now
	if many && p.hold() == nil { // where it fails now, the next burst tries again
		p.sleep.Reset(linger)
	}
}

// hold keeps processors awake until release.
func (p *Processors) hold() error {
	if p.fd >= 0 {
		return nil
	}
	fd, err := unix.Open(p.device, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", p.device, err)
	}
	if _, err := unix.Write(fd, binary.NativeEndian.AppendUint32(nil, 0)); err != nil {
		_ = unix.Close(fd) // nothing was asked for
		return fmt.Errorf("write %s: %w", p.device, err)
	}
	p.fd = fd
	return nil
}

func (p *Processors) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		_ = unix.Close(p.fd) // the kernel forgets the wish with it
		p.fd = -1
	}
}
