package fs

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/layout"
)

// Names of the files that a holder keeps of a mount, beside the connection to the kernel.
const (
	keptHandles = "handles"
	keptJournal = "journal"
	keptRequest = "requests"
)

// Kinds of records in the journal.
const (
	recordGrown  uint32 = iota + 1 // a directory that is filled when it is looked into: node ids follow the order
	recordTold                     // a view whose size the kernel was told
	recordView                     // such a view itself
	recordObject                   // the number of a backing file, which readers past FUSE hold
	recordBranch                   // the nodes of a directory in the root that was published
)

// makeBooks makes the books that the next daemon takes over while this one lives.
func (m *Mount) makeBooks() (err error) {
	if err := m.control.Begin(); err != nil {
		return err
	}
	if m.handles, err = newHandles(); err != nil || m.opt.Life == nil {
		return err
	}
	if m.suspects, err = handover.NewSuspects(); err != nil {
		return err
	}
	m.journal, err = handover.NewJournal()
	m.told.journal = m.journal
	m.keepBooks()
	return err
}

// keepBooks has this daemon's IDs and handles recorded.
func (m *Mount) keepBooks() {
	m.backing.booked = func(id int32) { m.handles.head.lastBacking.Store(int64(id)) }
	m.control.RecordObjects(func(id uint64, o *layout.Object) {
		m.handles.head.lastObject.Store(int64(id))
		if storage.Of(o).Segment != nil { // another segment has another number
			return
		}
		if err := m.journal.Append(recordObject, append(binary.LittleEndian.AppendUint64(nil, id), o.Name...)); err != nil {
			m.log.Error("readers past FUSE will have to open their files again after this daemon", "error", err)
		}
	})
}

// appendGrown records numbers before the kernel hears of them.
func appendGrown(journal *handover.Journal, g grown) error {
	if journal == nil {
		return nil
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(g.dir))
	b = binary.LittleEndian.AppendUint64(b, uint64(g.first))
	b = binary.LittleEndian.AppendUint64(b, uint64(g.count))
	return journal.Append(recordGrown, binary.LittleEndian.AppendUint64(b, g.sum))
}

// replay takes a record of the daemons before.
func (m *Mount) replay(kind uint32, record []byte) error {
	n := len(record) / 8
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(record[8*i:]) }
	switch {
	case kind == recordGrown && n == 4:
		m.tree.reserve(grown{int(at(0)), int(at(1)), int(at(2)), at(3)})
	case kind == recordTold && n == 3:
		m.told.told[at(0)] = told{int64(at(1)), at(2)}
	case kind == recordView:
		if n := m.told.decode(record); n != nil { // otherwise it is built again
			m.tree.set(n.view.number, n)
		}
	case kind == recordBranch && n >= 2:
		return m.branches.replay(record)
	case kind == recordObject && n >= 1:
		m.control.AdoptObject(at(0), m.listing.Find(string(record[8:])))
	default:
		return fmt.Errorf("%w: its journal has a record of an unknown kind", handover.ErrRefused)
	}
	return nil
}

// mountState is the part of a mount that never changes while it lives.
type mountState struct {
	mount *Mount

	Init    []byte // the kernel's INIT request, without flags that were not agreed on
	Reply   []byte // and its answer
	Depth   int
	Started time.Time
	Epoch   control.Epoch
	Nodes   int // of the source, and
	Sum     uint64
	Notes   []string
	Frozen  bool
}

var _ handover.State = (*mountState)(nil)

// Section implements [handover.State].
func (*mountState) Section() (string, uint32) { return "fs", 1 }

// Save implements [handover.State].
func (s *mountState) Save() ([]byte, error) { return json.Marshal(s) }

// Adopt implements [handover.State]. It refuses where this program would answer INIT in another way, or number nodes in another way.
func (s *mountState) Adopt(section []byte) error {
	if err := json.Unmarshal(section, s); err != nil {
		return err
	}
	m := s.mount
	m.started, m.depth, m.control.Epoch, m.opt.Notes, m.opt.Frozen = s.Started, s.Depth, s.Epoch, s.Notes, s.Frozen
	m.prepare()
	if reply, err := answerInit(m.around, m.mountOptions(), s.Init); err != nil || !bytes.Equal(reply, s.Reply) {
		return errors.Join(errors.New("this program would agree on something else with the kernel"), err)
	}
	if len(m.tree.nodes) != s.Nodes || sumOf(m.tree.nodes) != s.Sum {
		return errors.New("this program would number the files of the mount in another way")
	}
	return nil
}

// answerInit returns go-fuse's answer to an INIT request of the kernel.
func answerInit(fs fuse.RawFileSystem, opt *fuse.MountOptions, init []byte) ([]byte, error) {
	out := make([]byte, unsafe.Sizeof(fuse.OutHeader{})+unsafe.Sizeof(fuse.InitOut{}))
	n, status := fuse.NewProtocolServer(fs, opt).HandleRequest([][]byte{init}, [][]byte{out})
	if !status.Ok() {
		return nil, fmt.Errorf("answer INIT: %v", status)
	}
	return out[:n], nil
}

// agreed returns the kernel's INIT request without the flags that were not agreed on, so that a newer program cannot take one for agreed.
func agreed(fs fuse.RawFileSystem, opt *fuse.MountOptions, in fuse.InitIn) (init, reply []byte, err error) {
	raw := func() []byte { return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in))) }
	if reply, err = answerInit(fs, opt, raw()); err != nil {
		return nil, nil, err
	}
	const inReply = unsafe.Sizeof(fuse.OutHeader{})
	var out fuse.InitOut
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out)), reply[inReply:])
	in.Flags, in.Flags2 = out.Flags|in.Flags&fuse.CAP_INIT_EXT, out.Flags2
	init = raw()
	reply, err = answerInit(fs, opt, init)
	return init, reply, err
}

// ErrNoResend says why a mount ends with its daemon.
var ErrNoResend = errors.New("the kernel cannot send requests again: that came with Linux 6.9")

// Hold has the holder keep the mount from now on. It is called once Ready is closed. states are the caller's, for the next daemon.
// Where nobody can hold the mount, it goes on as ever, and the status says why. end is called once the mount is over.
func (m *Mount) Hold(ctx context.Context, states ...handover.State) (end func()) {
	life := m.opt.Life
	if life == nil {
		return func() {}
	}
	var err error
	if !life.Adopts() {
		var s handover.State
		s, err = m.leave()
		states = append(states, s)
	}
	if err == nil {
		err = life.Begin(ctx, m.log, states...)
	}
	if err != nil {
		life.Unheld(err)
		m.log.Warn("the mount ends with this daemon", "reason", err)
	}
	return life.End
}

// leave gives the holder the changing state of the mount, and returns the constant state.
func (m *Mount) leave() (handover.State, error) {
	if m.server.KernelSettings().Flags64()&fuse.CAP_HAS_RESEND == 0 {
		return nil, ErrNoResend
	}
	init, reply, err := agreed(m.around, m.mountOptions(), *m.server.KernelSettings())
	if err != nil {
		return nil, err
	}
	m.tree.mu.RLock()
	base := m.tree.nodes[:m.tree.base]
	m.tree.mu.RUnlock()
	s := &mountState{
		mount: m, Init: init, Reply: reply, Depth: m.depth, Started: m.started, Epoch: m.control.Epoch, Nodes: len(base), Sum: sumOf(base), Notes: m.opt.Notes,
		Frozen: m.opt.Frozen,
	}
	device, err := connectionFile()
	if err != nil {
		return nil, err
	}
	err = errors.Join(m.opt.Life.Keep(handover.Device, device), m.opt.Life.Keep(keptHandles, m.handles.file), m.opt.Life.Keep(keptJournal, m.journal.File()), device.Close())
	if err == nil {
		err = m.control.Keep()
	}
	if err == nil {
		err = errors.Join(m.opt.Life.Keep(keptRequest, m.suspects.File()), m.suspects.Listen())
	}
	return s, err
}

// connectionFile opens this process's connection to the kernel again, which go-fuse does not tell.
func connectionFile() (*os.File, error) {
	fds, err := filepath.Glob("/proc/self/fd/*")
	for _, name := range fds {
		if to, _ := os.Readlink(name); to != "/dev/fuse" { // some are closed by now
			continue
		}
		fd, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			return nil, err
		}
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), "/dev/fuse"), nil
	}
	return nil, errors.Join(errors.New("the connection to the kernel is not found"), err)
}

// takeOver goes on with the mount of the daemon before, once that is gone.
func (m *Mount) takeOver(ctx context.Context) error {
	life := m.opt.Life
	s := &mountState{mount: m}
	if err := life.Load(s); err != nil {
		return err
	}
	device, books, journal := life.Took(handover.Device), life.Took(keptHandles), life.Took(keptJournal)
	if device == nil || books == nil || journal == nil {
		return fmt.Errorf("%w: the holder has not all of its files", handover.ErrRefused)
	}
	var err error
	if m.handles, err = openHandles(books); err != nil {
		return err
	}
	defer func() { _ = device.Close() }() // go-fuse has its own
	m.journal = handover.ReadJournal(journal)
	m.told.told, m.told.journal = map[uint64]told{}, m.journal
	replay := func() error { return m.journal.Replay(m.replay) }
	if err := replay(); err != nil {
		return err
	}
	if life.Waits() {
		go m.indexAhead(ctx) // ends by itself, or with ctx; Serve waits for its work
	}
	death, err := life.Prepared(ctx, replay)
	if err != nil {
		return err
	}
	if !m.handles.claim(death.PID) {
		return life.Taken()
	}
	life.Secure(m.log)
	if err := errors.Join(replay(), m.journal.Cut()); err != nil {
		return err
	}
	if m.suspects, err = adoptSuspects(life, m.log); err != nil {
		return err
	}
	if death.How == "upgrade" {
		m.suspects.Pardon()
	}
	if m.server, err = m.adoptServer(device, s.Init); err != nil {
		return fmt.Errorf("go on with the mount at %s: %w", m.point, err)
	}
	m.backing.server = m.server
	touchBuffers(m.server)
	m.backing.judge(m.server.KernelSettings(), m.log)
	m.adoptHandles()
	m.control.TakeOver()
	if err := resend(device); err != nil && !errors.Is(err, unix.ENODEV) { // ENODEV: it was unmounted, as Serve will see
		return fmt.Errorf("ask the kernel for what was not answered: %w", err)
	}
	life.Goes()
	m.control.GoOnWithPlans(m.handles.nodes)
	head := m.handles.head
	head.lives.Add(1)
	if death.How == "crash" {
		head.crashes.Add(1)
	}
	still := int64(death.Since())
	head.standstill.Store(still)
	head.worst.Store(max(head.worst.Load(), still))
	m.log.Info("the mount goes on", "after", death.How, "standstill", time.Duration(still), "daemons", head.lives.Load()+1)
	return nil
}

// adoptSuspects takes over the requests that are known to end daemons. An older program has left nothing of
// that.
func adoptSuspects(life *handover.Life, log *slog.Logger) (s *handover.Suspects, err error) {
	f, said := life.Took(keptRequest), ""
	if f != nil {
		s, said, err = handover.AdoptSuspects(f)
	} else if s, err = handover.NewSuspects(); err == nil {
		err = life.Keep(keptRequest, s.File())
	}
	if said != "" {
		log.Error("the daemon before has crashed: its log has more", "said", said)
	}
	if err != nil {
		return nil, err
	}
	return s, s.Listen()
}

// indexAhead recognizes the dataset while another daemon serves, so that views that nobody has looked at need not wait for that. It
// asks no server: a remote source is recognized when this daemon's turn has come.
func (m *Mount) indexAhead(ctx context.Context) {
	if m.opt.Remote.Origin != nil || m.opt.Remote.Cache != nil {
		return
	}
	_, _ = m.found.index(ctx) // is tried again when it is asked for
	if m.opt.Life.Waits() {
		debug.FreeOSMemory() // of the memory that it took
	}
}

// adoptServer has go-fuse answer on a connection whose INIT was answered. go-fuse reads INIT when it is made, and nothing else
// before Serve. So it gets the saved INIT from a socket, which then becomes the connection: go-fuse knows its number alone.
func (m *Mount) adoptServer(device *os.File, init []byte) (*fuse.Server, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket for INIT: %w", err)
	}
	defer func() { _ = unix.Close(ends[0]) }() // the answer is known
	if _, err := unix.Write(ends[0], init); err != nil {
		return nil, fmt.Errorf("say INIT again: %w", err)
	}
	server, err := fuse.NewServer(m.guarded(), fmt.Sprintf("/dev/fd/%d", ends[1]), m.mountOptions())
	if err != nil {
		return nil, err
	}
	return server, os.NewSyscallError("dup3", unix.Dup3(int(device.Fd()), ends[1], unix.O_CLOEXEC))
}

// touchBuffers has go-fuse's buffers be there before the kernel writes a request to them. A thread that is killed takes a request that
// comes at that moment, and cannot have a page any more. Then the kernel would end the request with EIO. The pool is not exported, and
// TestBuffersAreTouched sees that it is found.
func touchBuffers(server *fuse.Server) (found bool) {
	field := reflect.ValueOf(server).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return false
	}
	pool := (*sync.Pool)(unsafe.Pointer(field.UnsafeAddr()))
	untouched := pool.New
	pool.New = func() any {
		b := untouched()
		if p, ok := b.([]byte); ok {
			const requestMax = 64 << 10 // nothing is written here
			for i := 0; i < min(len(p), requestMax); i += os.Getpagesize() {
				p[i] = 0
			}
		}
		return b
	}
	return true
}

// adoptHandles takes over open files.
func (m *Mount) adoptHandles() {
	m.control.AdoptObject(uint64(m.handles.head.lastObject.Load()), nil)
	m.keepBooks()
	booked := map[int32]bool{}
	m.handles.recover(func(h *handle) {
		booked[h.backing] = true
		switch h.state.Load() {
		case handleOuter: // Top's own
		case handleClosing:
			_ = m.server.UnregisterBackingFd(h.backing) // the daemon before may have done it
			h.state.Store(handleFree)
		case handlePassthrough:
			m.backing.adopt(int(h.node), h.backing)
			m.counters.passthroughOpens.Add(1)
		case handleCached:
			m.backing.adopt(int(h.node), noBacking)
			m.counters.cachedOpens.Add(1)
		}
	})
	m.backing.closeLost(m.handles.head, booked)
}

// resend asks the kernel for the requests that were read and not answered (FUSE_NOTIFY_RESEND).
func resend(device *os.File) error {
	note := fuse.OutHeader{Length: uint32(unsafe.Sizeof(fuse.OutHeader{})), Status: -fuse.NOTIFY_RESEND}
	_, err := unix.Write(int(device.Fd()), unsafe.Slice((*byte)(unsafe.Pointer(&note)), unsafe.Sizeof(note)))
	return err
}

// handoverStatus says who holds the mount.
func handoverStatus(life *handover.Life, h *handlesHead) status.Handover {
	kind, pid, why := life.Holder()
	return status.Handover{
		Holder: kind, PID: pid, Next: life.Next(), Why: why, Count: h.lives.Load(), Crashes: h.crashes.Load(), Uncopied: life.Missed(),
		LastStandstill: time.Duration(h.standstill.Load()).Seconds(), WorstStandstill: time.Duration(h.worst.Load()).Seconds(),
	}
}
