package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ChangeKind says how a file of the source differs from the one that was listed.
type ChangeKind uint32

// The kinds, as docs/reference/control-protocol.md numbers them.
const (
	ChangeCut       ChangeKind = iota + 1 // the same file is shorter
	ChangeRewritten                       // the same file was written to
	ChangeReplaced                        // another file has its name
	ChangeRemoved                         // no file has its name
)

// String completes the sentence "the file was ...".
func (k ChangeKind) String() string {
	if k >= ChangeCut && k <= ChangeRemoved {
		return [...]string{"cut", "rewritten", "replaced", "removed"}[k-1]
	}
	return "changed"
}

// Change is a file of the source that has changed.
type Change struct {
	Object uint64
	Kind   ChangeKind
	Ago    time.Duration // it was still as listed so long before the answer, or longer
	Name   string        // relative to the mount's source
}

// AskChanges asks for the daemon's list of changes from one entry on.
type AskChanges struct {
	Counter bool // the descriptor of the counter is wanted, and the daemon watches from now on, until the connection ends
	From    uint64
}

// Changes answers [AskChanges].
type Changes struct {
	Next     uint64 // the entry after these, for the next request
	More     bool   // there are more entries
	Withheld uint32 // entries before Next of files that the peer may not read
	List     []Change
}

const (
	changeSize = 32
	// maxAgo bounds how long ago a change was: no mount lives longer.
	maxAgo = 100 * 365 * 24 * time.Hour
)

// AppendTo appends the payload.
func (m *AskChanges) AppendTo(b []byte) []byte {
	return put64(put32(b, bit(m.Counter), 0), m.From)
}

// ParseAskChanges reads the payload.
func ParseAskChanges(p []byte) (AskChanges, error) {
	r := reader{rest: p}
	flags := r.u32()
	r.zero(4)
	m := AskChanges{flags == 1, r.u64()}
	r.bad = r.bad || flags > 1
	return m, r.end()
}

// Room tells whether a change of a file with such a name still fits into one frame.
func (m *Changes) Room(name string) bool {
	size := 24 + changeSize + len(name)
	for i := range m.List {
		size += changeSize + len(m.List[i].Name)
	}
	return size <= MaxPayload
}

// AppendTo appends the payload.
func (m *Changes) AppendTo(b []byte) []byte {
	b = put32(put64(b, m.Next), bit(m.More), uint32(len(m.List)), m.Withheld, 0)
	for _, c := range m.List {
		b = put64(put32(put64(b, c.Object), uint32(c.Kind), uint32(len(c.Name))), uint64(c.Ago), 0)
	}
	for _, c := range m.List {
		b = append(b, c.Name...)
	}
	return b
}

// ParseChanges reads the payload.
func ParseChanges(p []byte) (Changes, error) {
	r := reader{rest: p}
	m := Changes{Next: r.u64()}
	more := r.u32()
	n := r.count(changeSize, MaxPayload/changeSize)
	m.Withheld = r.u32()
	r.zero(4)
	m.More = more == 1
	r.bad = r.bad || more > 1
	table := reader{rest: r.bytes(n * changeSize)}
	m.List = make([]Change, n)
	for i := range m.List {
		c := &m.List[i]
		c.Object, c.Kind = table.u64(), ChangeKind(table.u32())
		length := table.u32()
		c.Ago = time.Duration(table.i64())
		table.zero(8)
		c.Name = string(r.bytes(int(length)))
		r.bad = r.bad || c.Kind < ChangeCut || c.Kind > ChangeRemoved || c.Ago > maxAgo
	}
	r.bad = r.bad || table.bad
	return m, r.end()
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Counter is memory that a daemon writes and its readers map: 4,096 bytes of a file in memory, which nobody can make shorter. Daemons that follow each other
// on a mount share it.
type Counter struct {
	Changes atomic.Uint64 // grows with each entry of the list, and when another daemon goes on with the mount
	Looked  atomic.Int64  // CLOCK_MONOTONIC, ns: the daemon knows the kernel's notices until then. It moves every 100 ms while the daemon watches
}

// CounterSize is the size of the counter's file.
const CounterSize = 4096

// MapCounter maps the file of a counter. Unmap ends the use.
func MapCounter(fd int, writable bool) (c *Counter, unmap func(), err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, fmt.Errorf("stat the counter of changes: %w", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size != CounterSize {
		return nil, nil, errors.Join(errors.New("the counter of changes is no memory of the right size that stays"), err)
	}
	protection := unix.PROT_READ
	if writable {
		protection |= unix.PROT_WRITE
	}
	memory, err := unix.Mmap(fd, 0, CounterSize, protection, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map the counter of changes: %w", err)
	}
	return (*Counter)(unsafe.Pointer(unsafe.SliceData(memory))), func() { _ = unix.Munmap(memory) }, nil
}

// ErrNoChanges says that a daemon does not tell of changes: it is older than this program.
var ErrNoChanges = errors.New("the daemon does not tell of changes")

// Changes asks which files of the source have changed. With q.Counter comes the file of the counter, which the caller closes.
func (c *Client) Changes(ctx context.Context, q AskChanges) (m Changes, counter *os.File, err error) {
	if !c.TellsChanges() {
		return m, nil, ErrNoChanges
	}
	a, err := c.ask(ctx, TypeChanges, TypeChanged, q.AppendTo)
	if err == nil {
		m, err = ParseChanges(a.payload)
	}
	switch {
	case err != nil:
	case a.truncated:
		err = ErrTooManyFiles
	case len(a.fds) != int(bit(q.Counter)):
		err = errMalformed
	}
	if err != nil {
		CloseAll(a.fds)
		return m, nil, fmt.Errorf("ask what has changed: %w", err)
	}
	if q.Counter {
		counter = os.NewFile(uintptr(a.fds[0]), "changes")
	}
	return m, counter, nil
}

// TellsChanges reports whether the daemon answers [Client.Changes].
func (c *Client) TellsChanges() bool { return c.welcome.Flags&WelcomeChanges != 0 }
