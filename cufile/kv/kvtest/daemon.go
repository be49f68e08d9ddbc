// Package kvtest stands for the daemon of a KV volume in tests of its clients. It keeps one namespace in memory, of so many slots in
// each tier, evicts nothing, and on request behaves like a daemon that is replaced, forgets, or lies.
package kvtest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// Options describe a Daemon.
type Options struct {
	Dir        string // stands for the mount
	BlockBytes int64
	Memory     int64 // slots of the memory tier
	Disk       int64 // slots of the disk tier
	Region     int64 // slots of a region; 0: all of a tier
	Direct     bool  // the disk tier is read and written past the page cache
}

// Daemon answers clients until it is closed.
type Daemon struct {
	o     Options
	files []*os.File // of the tiers; the daemon's
	tiers []control.KVTier
	slot  int64
	from  *net.UnixListener

	mu     sync.Mutex // guards the fields below
	epoch  control.Epoch
	conns  map[*control.Conn]bool
	blocks map[string]*block
	tokens map[uint64]*block // pins and reservations
	stored map[uint64]bool   // reservations that were committed: the answer may not have come
	free   [][]uint64        // slots of each tier
	last   uint64
	closed bool
	before func(t control.FrameType) bool
	mute   control.FrameType
	asked  map[control.FrameType]int

	all sync.WaitGroup
}

type block struct {
	key       string
	tier      uint32
	slot      uint64
	length    uint32
	crc       uint32
	flags     uint32
	committed bool
}

// Start makes a daemon of a directory.
func Start(o Options) (*Daemon, error) {
	d := &Daemon{o: o, slot: (o.BlockBytes + 4095) / 4096 * 4096, conns: map[*control.Conn]bool{}, blocks: map[string]*block{},
		tokens: map[uint64]*block{}, stored: map[uint64]bool{}, asked: map[control.FrameType]int{}}
	_, _ = rand.Read(d.epoch[:]) // never fails
	for i, n := range []int64{o.Memory, o.Disk} {
		if n == 0 {
			continue
		}
		region := n
		if o.Region > 0 {
			region = o.Region
		}
		t := control.KVTier{Kind: control.KVTierKind(i + 1), FD: int32(len(d.tiers)), Bytes: n * d.slot, Region: region * d.slot}
		var file *os.File
		if t.Kind == control.KVMemory {
			fd, err := unix.MemfdCreate("kvtest", unix.MFD_CLOEXEC)
			if err != nil {
				return nil, err
			}
			file = os.NewFile(uintptr(fd), "memory")
		} else {
			var err error
			if o.Direct {
				t.Flags = control.KVDirect
			}
			if file, err = os.CreateTemp(o.Dir, "slab-"); err != nil {
				return nil, err
			}
		}
		if err := file.Truncate(t.Bytes); err != nil {
			return nil, err
		}
		d.tiers, d.files = append(d.tiers, t), append(d.files, file)
		var free []uint64
		for at := range uint64(n) {
			free = append(free, at)
		}
		d.free = append(d.free, free)
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, ".hbmfs"), 0o755); err != nil {
		return nil, err
	}
	return d, d.listen()
}

func (d *Daemon) listen() error {
	path := filepath.Join(d.o.Dir, ".hbmfs", "control")
	_ = os.Remove(path)
	from, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	d.from = from
	d.all.Go(func() {
		for {
			c, err := from.AcceptUnix()
			if err != nil {
				return
			}
			conn, err := control.NewConn(c)
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns[conn] = true
			d.mu.Unlock()
			d.all.Go(func() { d.serve(conn) })
		}
	})
	return nil
}

// Close ends the daemon.
func (d *Daemon) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	err := d.from.Close()
	d.Cut()
	d.all.Wait()
	for _, f := range d.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// Cut ends all connections, as a hand-over does: clients' holds stay. No frame is done after it that came before.
func (d *Daemon) Cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		c.Cut()
	}
	clear(d.conns)
}

// Forget is Cut where the next daemon knows of no token.
func (d *Daemon) Forget() {
	d.mu.Lock()
	for token, b := range d.tokens {
		if !b.committed {
			d.drop(b)
		}
		delete(d.tokens, token)
	}
	clear(d.stored)
	d.mu.Unlock()
	d.Cut()
}

// Remount is Forget with another epoch: the volume was mounted again.
func (d *Daemon) Remount() {
	d.mu.Lock()
	_, _ = rand.Read(d.epoch[:]) // never fails
	d.mu.Unlock()
	d.Forget()
}

// Mute has the next frame of a type done and not answered: its connection ends then, as a hand-over ends it.
func (d *Daemon) Mute(t control.FrameType) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mute = t
}

// Recut tells clients that come from now on that regions of the memory tier went.
func (d *Daemon) Recut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tiers = slices.Clone(d.tiers)
	d.tiers[0].Cuts++
}

// Before has f called before a frame is answered; where it is false, no answer comes.
func (d *Daemon) Before(f func(t control.FrameType) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = f
}

// Held is how many pins and reservations there are.
func (d *Daemon) Held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.tokens)
}

// Asked is how many frames of a type came.
func (d *Daemon) Asked(t control.FrameType) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[t]
}

// Damage changes a byte of a block in its slot.
func (d *Daemon) Damage(key string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.blocks[key]
	one := []byte{0}
	if _, err := d.files[b.tier].ReadAt(one, int64(b.slot)*d.slot+int64(b.length)/2); err != nil {
		return err
	}
	one[0] ^= 1
	_, err := d.files[b.tier].WriteAt(one, int64(b.slot)*d.slot+int64(b.length)/2)
	return err
}

// Unsum forgets the checksum of a block.
func (d *Daemon) Unsum(key string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.blocks[key]
	if b == nil || b.flags == 0 {
		return errors.New("there is no such block, or it has no checksum")
	}
	b.flags = 0
	return nil
}

// Truncate cuts the file of a tier behind the clients' backs.
func (d *Daemon) Truncate(tier int, n int64) error { return d.files[tier].Truncate(n) }

// drop needs mu.
func (d *Daemon) drop(b *block) {
	if d.blocks[b.key] == b {
		delete(d.blocks, b.key)
	}
	d.free[b.tier] = append(d.free[b.tier], b.slot)
}

func (d *Daemon) serve(c *control.Conn) {
	defer func() { _ = c.Close() }()
	buffer := make([]byte, control.MaxFrame)
	for {
		n, err := c.Receive(buffer)
		if err != nil {
			return
		}
		h, payload, err := control.ParseFrame(buffer[:n])
		if err != nil {
			return
		}
		d.mu.Lock()
		before := d.before
		d.asked[h.Type]++
		d.mu.Unlock()
		if before != nil && !before(h.Type) {
			continue
		}
		t, fds, fill, err := d.answer(c, h.Type, payload)
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			refusal := control.Refusal{Errno: errno, Text: fmt.Sprintf("kvtest: %v", err)}
			t, fill = control.TypeError, refusal.AppendTo
		} else if err != nil {
			return
		}
		if d.muted(h.Type) {
			control.CloseAll(fds)
			return
		}
		frame := control.AppendFrame(nil, control.Header{Version: control.Version, Type: t, ID: h.ID}, fill)
		if len(fds) > 0 {
			err = c.SendNow(frame, fds)
			control.CloseAll(fds)
		} else {
			err = c.Send(frame, time.Minute)
		}
		if err != nil {
			return
		}
	}
}

// muted tells whether a frame is the one that is not answered.
func (d *Daemon) muted(t control.FrameType) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mute != t {
		return false
	}
	d.mute = 0
	return true
}

func (d *Daemon) answer(c *control.Conn, t control.FrameType, p []byte) (answer control.FrameType, fds []int, fill func([]byte) []byte, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.conns[c] {
		return 0, nil, nil, net.ErrClosed
	}
	switch t {
	case control.TypeHello:
		m := control.Welcome{Version: control.Version, Flags: control.WelcomeKV, Epoch: d.epoch, MaxLeases: 1, MaxPaths: 1}
		return control.TypeWelcome, nil, m.AppendTo, nil
	case control.TypeKVOpen:
		return d.open(p)
	case control.TypeKVAttach:
		m, err := control.ParseKVAttach(p)
		for token, b := range d.tokens {
			if token <= m.Seen {
				continue
			}
			delete(d.tokens, token)
			if !b.committed {
				d.drop(b)
			}
		}
		return control.TypeDone, nil, nil, err
	case control.TypeKVLookup:
		m, err := control.ParseKVKeys(p)
		answers := d.lookup(&m)
		return control.TypeKVSlots, nil, func(b []byte) []byte { return control.AppendKVSlots(b, answers) }, err
	case control.TypeKVReserve:
		m, err := control.ParseKVReserve(p)
		answers := d.reserve(&m)
		return control.TypeKVSlots, nil, func(b []byte) []byte { return control.AppendKVSlots(b, answers) }, err
	case control.TypeKVCommit:
		m, err := control.ParseKVCommit(p)
		answers := d.commit(&m)
		return control.TypeKVDone, nil, func(b []byte) []byte { return control.AppendKVDone(b, answers) }, err
	case control.TypeKVRelease:
		m, err := control.ParseKVRelease(p)
		answers := d.release(&m)
		return control.TypeKVDone, nil, func(b []byte) []byte { return control.AppendKVDone(b, answers) }, err
	case control.TypeKVRemove:
		m, err := control.ParseKVKeys(p)
		answers := d.remove(&m)
		return control.TypeKVDone, nil, func(b []byte) []byte { return control.AppendKVDone(b, answers) }, err
	}
	return 0, nil, nil, syscall.EPROTO
}

func (d *Daemon) open(p []byte) (answer control.FrameType, fds []int, fill func([]byte) []byte, err error) {
	m, err := control.ParseKVOpen(p)
	if err == nil && m.BlockBytes != 0 && m.BlockBytes != d.o.BlockBytes {
		err = syscall.EINVAL
	}
	if err != nil {
		return 0, nil, nil, err
	}
	mode := unix.O_RDONLY
	if m.Flags&control.KVWrite != 0 {
		mode = unix.O_RDWR
	}
	for _, f := range d.files {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), mode|unix.O_CLOEXEC, 0)
		if err != nil {
			control.CloseAll(fds)
			return 0, nil, nil, err
		}
		fds = append(fds, fd)
	}
	s := control.KVSpace{Space: 1, Mode: 0o600, Client: 7, BlockBytes: d.o.BlockBytes, SlotBytes: d.slot, Tiers: d.tiers}
	return control.TypeKVSpace, fds, s.AppendTo, nil
}

func (d *Daemon) lookup(m *control.KVKeys) []control.KVSlot {
	slots := make([]control.KVSlot, len(m.Keys))
	for i, key := range m.Keys {
		b := d.blocks[string(key)]
		if b == nil || !b.committed {
			slots[i].Errno = syscall.ENOENT
			continue
		}
		slots[i] = control.KVSlot{Tier: b.tier, Slot: b.slot, Length: b.length, CRC: b.crc, Flags: b.flags}
		if m.Flags&control.KVPin != 0 {
			slots[i].Token = d.token(b)
		}
	}
	return slots
}

func (d *Daemon) token(b *block) uint64 {
	d.last++
	d.tokens[d.last] = b
	return d.last
}

func (d *Daemon) reserve(m *control.KVReserve) []control.KVSlot {
	slots := make([]control.KVSlot, len(m.Blocks))
	for i, wanted := range m.Blocks {
		if b := d.blocks[string(wanted.Key)]; b != nil {
			if slots[i].Errno = syscall.EBUSY; b.committed {
				slots[i].Errno = syscall.EEXIST
			}
			continue
		}
		slots[i].Errno = syscall.ENOSPC
		for tier, free := range d.free {
			if len(free) > 0 {
				b := &block{key: string(wanted.Key), tier: uint32(tier), slot: free[0], length: wanted.Length}
				d.free[tier], d.blocks[b.key] = free[1:], b
				slots[i] = control.KVSlot{Tier: b.tier, Slot: b.slot, Length: b.length, Token: d.token(b)}
				break
			}
		}
	}
	return slots
}

func (d *Daemon) commit(m *control.KVCommit) []control.KVDone {
	done := make([]control.KVDone, len(m.Stored))
	for i, s := range m.Stored {
		b := d.tokens[s.Token]
		if done[i].Survives = control.KVNothing; d.stored[s.Token] {
			continue
		}
		if b == nil || b.committed {
			done[i] = control.KVDone{Errno: syscall.ENOENT}
			continue
		}
		if d.tiers[b.tier].Kind == control.KVDisk && s.Flags&control.KVHasCRC == 0 {
			done[i] = control.KVDone{Errno: syscall.EINVAL}
			continue
		}
		delete(d.tokens, s.Token)
		b.committed, b.crc, b.flags = true, s.CRC, s.Flags
		d.stored[s.Token] = true
	}
	return done
}

func (d *Daemon) release(m *control.KVRelease) []control.KVDone {
	done := make([]control.KVDone, len(m.Tokens))
	for i, token := range m.Tokens {
		b := d.tokens[token]
		if b == nil {
			done[i].Errno = syscall.ENOENT
			continue
		}
		delete(d.tokens, token)
		if !b.committed || m.Flags&control.KVSuspect != 0 {
			d.drop(b)
		}
	}
	return done
}

func (d *Daemon) remove(m *control.KVKeys) []control.KVDone {
	if m.Flags&control.KVAll != 0 {
		for _, b := range d.blocks {
			d.drop(b)
		}
		return nil
	}
	done := make([]control.KVDone, len(m.Keys))
	for i, key := range m.Keys {
		b := d.blocks[string(key)]
		if b == nil || !b.committed {
			done[i].Errno = syscall.ENOENT
			continue
		}
		d.drop(b)
	}
	return done
}
