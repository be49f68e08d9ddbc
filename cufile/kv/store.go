package kv

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// HostDevice is an Options.Device: host memory instead of a GPU's.
const HostDevice = -1

// Errors of a Store, also those of the packages below.
var (
	ErrClosed   = crew.ErrClosed
	ErrUnderWay = crew.ErrUnderWay
	ErrReadOnly = errors.New("the store was opened without Write")
)

// Options configure a Store.
type Options struct {
	Device     int    // CUDA index, or HostDevice
	BlockBytes int64  // the most that a block has; 0: as the namespace has it
	Create     bool   // make the namespace where there is none
	Write      bool   // to put and remove
	Mode       uint32 // permission bits of a namespace that this makes; 0: 0600
	Sums       bool   // blocks in memory have checksums (CRC-32C), too, which gets compare; blocks on the disk always do
	Threads    int    // that copy; 0: 4, on the host as many as there are CPUs, up to 4
	Client     string // the name that the mount's status shows

	Libraries driver.Libraries

	slot   int64         // bytes of a pinned slot; for tests
	redial time.Duration // how long the next daemon is waited for; for tests
	look   time.Duration // how often a store that asks nothing looks whether its daemon is there; for tests
}

func (o *Options) setDefaults() error {
	if o.Threads == 0 {
		o.Threads = 4
		if o.Device == HostDevice {
			o.Threads = min(4, runtime.NumCPU())
		}
	}
	if o.Mode == 0 {
		o.Mode = 0o600
	}
	if o.Client == "" {
		o.Client = "kv"
	}
	if o.slot == 0 {
		o.slot = slotBytes
	}
	if o.redial == 0 {
		o.redial = control.NextDaemonTime
	}
	if o.look == 0 {
		o.look = lookPause
	}
	switch {
	case o.Threads < 1 || o.Threads > 256:
		return fmt.Errorf("threads must be 1 to 256, not %d", o.Threads)
	case o.BlockBytes < 0 || o.BlockBytes > control.MaxKVBlock:
		return fmt.Errorf("a block must have 1 to %d bytes, not %d", control.MaxKVBlock, o.BlockBytes)
	case o.Create && o.BlockBytes == 0:
		return errors.New("whoever makes a namespace says how large its blocks are")
	case o.Device < HostDevice:
		return fmt.Errorf("device must be a GPU's index, or -1 for the host, not %d", o.Device)
	case o.Mode > 0o777:
		return fmt.Errorf("mode must be permission bits, not %#o", o.Mode)
	}
	return nil
}

// Store is a namespace of a KV volume, for one device. Its methods may be called from many goroutines at once.
type Store struct {
	opt        Options
	root, name string
	device     *device.Device
	gpu        *gpu // nil for the host
	threads    int
	sums       bool
	redial     time.Duration
	gate       crew.Gate
	life       context.Context // ends with Close
	end        context.CancelFunc
	warming    sync.WaitGroup

	mu         sync.Mutex // guards the fields below
	now        *session   // nil between two daemons, and once closed
	before     *session   // whose daemon has gone; its tiers may be those of the next
	blockBytes int64
	unneeded   []uint64 // tokens to release on the next connection
	closed     bool
	requests   map[*Request]bool
	counts     counts

	ending sync.Mutex // one closes at a time
	ended  bool
}

// Open connects to the daemon of the mount that path lies in, and opens a namespace. It fails with an errno: ENOENT, there is no such
// namespace and Create is not set; EINVAL, its blocks have another size; EACCES; EROFS, it is mounted read-only here; [control.ErrNoKV].
func Open(ctx context.Context, path, namespace string, o Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	root, err := control.Root(path)
	if err != nil {
		return nil, err
	}
	s := &Store{opt: o, root: root, name: namespace, threads: o.Threads, sums: o.Sums, redial: o.redial, requests: map[*Request]bool{}}
	s.life, s.end = context.WithCancel(context.Background())
	if s.device, err = device.Open(o.Device, o.Libraries); err == nil && o.Device != HostDevice {
		if s.gpu, err = newGPU(s.device, &o); err != nil {
			err = errors.Join(err, s.device.Close())
		}
	}
	if err != nil {
		s.end()
		return nil, err
	}
	if _, err := s.ask(ctx, nil, func(*control.Namespace) error { return nil }); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.warming.Go(s.comeBack)
	return s, nil
}

// BlockBytes is the most that a block has.
func (s *Store) BlockBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blockBytes
}

// Close cancels all requests, waits for them, and gives everything back. It fails with ErrUnderWay where a call into the system or a
// library does not end for 5 s. Memory of the caller must stay then, and the caller calls Close again.
func (s *Store) Close() error {
	s.ending.Lock()
	defer s.ending.Unlock()
	if s.ended {
		return nil
	}
	left := s.gate.Shut()
	s.end()
	s.mu.Lock()
	s.closed = true
	for q := range s.requests {
		q.cancel()
	}
	s.mu.Unlock()
	if err := crew.Await(left); err != nil {
		return fmt.Errorf("close the store: %w; close it again then", err)
	}
	s.warming.Wait() // life has ended, and a step is milliseconds
	s.mu.Lock()
	sessions := []*session{s.now, s.before}
	s.now, s.before = nil, nil
	s.mu.Unlock()
	var errs []error
	for i, n := range sessions {
		if n == nil {
			continue
		}
		if i == 0 {
			errs = append(errs, n.client.Close())
		}
		n.drop()
	}
	if s.gpu != nil {
		err := s.gpu.close()
		if errors.Is(err, ErrUnderWay) {
			return fmt.Errorf("close the store: %w; close it again then", err)
		}
		errs = append(errs, err)
	}
	s.ended = true
	return errors.Join(append(errs, s.device.Close())...)
}
