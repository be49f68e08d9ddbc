package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/internal/volume/drafts"
	"github.com/hbmfs/hbmfs/internal/volume/kv"
	"github.com/hbmfs/hbmfs/layout"
)

// Limits of the socket. A reader that meets one gets EAGAIN, and reads through FUSE meanwhile.
const (
	sessionsPerUID   = 256
	sessionsInAll    = 1024
	leasesPerSession = 1 << 16
	leasesInAll      = 1 << 19
	leasesAtLeast    = 2 * control.MaxObjects // of a user with a connection
	leasesOfMany     = 2048                   // of a connection; it has more while half of its user's share is free for others
	unacked          = 2                      // messages with descriptors that a peer has not acknowledged
	answersAtOnce    = 8                      // with descriptors, 64 each, while they are made; see turns
	lingerAtOnce     = 8                      // sessions that wait on threads
	helloTime        = 10 * time.Second       // to say HELLO
	replyTime        = 5 * time.Second        // to read an answer
)

// descriptorLimits bound the connections, of all users and of one, and the answers with descriptors. They are lower where
// this process may have few files open: its own files take half, and the rest must suffice for these.
func descriptorLimits() (sessions, each int64, answers int) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024 // the default of Linux
	}
	return limitsFor(limit.Cur)
}

func limitsFor(files uint64) (sessions, each int64, answers int) {
	sessions = int64(max(4, min(sessionsInAll, files/8)))
	return sessions, sessions / (sessionsInAll / sessionsPerUID), int(max(2, min(answersAtOnce, files/512)))
}

// errProtocol ends a connection whose peer does not keep to the protocol.
var errProtocol = errors.New("this is not the hbmfs control protocol")

// session is one connection. All of it belongs to the goroutine that runs it. A lease ends with its release or the
// connection.
type session struct {
	server  *Server
	conn    *control.Conn
	peer    *peer
	usage   *usage // nil before HELLO
	reader  readerID
	leases  map[uint64]*lease   // by object
	given   int                 // descriptors of all leases
	pending map[uint32][]uint64 // objects of messages that are not yet acknowledged
	drafts  *drafts.Session     // nil before the first frame of a draft
	kv      *kv.Session         // nil before the first frame of a KV volume

	watches   bool          // the peer was given the counter of changes
	record    *store.Record // that the connection has begun, or nil
	recordEnd func()
}

// newSession admits a connection, or tells the peer why not.
func (s *Server) newSession(c *net.UnixConn) (*session, error) {
	conn, err := control.NewConn(c)
	if err != nil {
		return nil, err
	}
	k := &session{server: s, conn: conn, leases: map[uint64]*lease{}, pending: map[uint32][]uint64{}}
	if k.peer, err = peerOf(c); err != nil {
		return nil, err
	}
	if refusal := s.admit(uint32(os.Geteuid()), k.peer.uid); refusal != nil {
		header := control.Header{Version: control.Version, Type: control.TypeError}
		_ = conn.SendNow(control.AppendFrame(nil, header, refusal.AppendTo), nil) // a new connection has room
		return nil, refusal
	}
	return k, nil
}

// run answers the peer until it goes, breaks the protocol, or ctx ends.
func (s *session) run(ctx context.Context) {
	defer s.end()
	defer context.AfterFunc(ctx, s.conn.Cut)()            // a connection keeps the filesystem alive
	_ = s.conn.SetReadDeadline(time.Now().Add(helloTime)) // fails on a closed connection, as the next line will
	for {
		if s.await() != nil || s.one(ctx) != nil {
			return
		}
	}
}

// await returns when there is a message. A few sessions wait on threads first, for a moment: the kernel wakes a thread in
// half the time that Go's poller needs.
func (s *session) await() error {
	select {
	case s.server.lingering <- struct{}{}:
		soon := s.conn.Soon()
		<-s.server.lingering
		if soon {
			return nil
		}
	default:
	}
	return s.conn.Wait()
}

func (s *session) end() {
	_ = s.conn.Close() // nothing is lost: the peer has gone, or has to
	s.server.leases.Book(s.peer.uid, -int64(s.given))
	for _, l := range s.leases {
		l.unpin()
	}
	if s.drafts != nil {
		s.drafts.End()
	}
	if s.kv != nil {
		s.kv.End()
	}
	s.endRecord()
	if s.watches {
		s.server.changes.end()
	}
	s.server.prefetch.endPlan(planner{s.peer.uid, s})
	s.server.sessions.Book(s.peer.uid, -1)
	if s.usage != nil {
		s.server.leave(s.usage, s.reader)
	}
}

// one receives a message and answers it. An error ends the connection.
func (s *session) one(ctx context.Context) error {
	in, out := s.server.buffer(), s.server.buffer()
	defer s.server.buffers.Put(in)
	defer s.server.buffers.Put(out)
	n, err := s.conn.Receive(in[:])
	if err != nil {
		return err
	}
	h, payload, err := control.ParseFrame(in[:n])
	if err == nil && h.Version != control.Version {
		err = errProtocol
	}
	a := answer{header: control.Header{Version: control.Version, ID: h.ID}}
	if err == nil {
		err = s.handle(ctx, h, payload, &a)
		defer a.close()
	}
	var refusal *control.Refusal
	fatal := err != nil && !errors.As(err, &refusal)
	if fatal {
		refusal = &control.Refusal{Errno: syscall.EPROTO, Text: errProtocol.Error()}
	}
	if refusal != nil {
		s.server.refused.Add(1)
		a.header.Type, a.payload = control.TypeError, refusal.AppendTo
	}
	if a.header.Type != 0 {
		if sendErr := s.send(&a, out); sendErr != nil {
			return sendErr
		}
	}
	if fatal {
		return err
	}
	return nil
}

// answer is the frame for the peer: none, if its type is 0.
type answer struct {
	header  control.Header
	payload func([]byte) []byte
	fds     []int
	done    func() // ends its turn, if it has one
}

func (a *answer) close() {
	control.CloseAll(a.fds)
	a.fds = nil
	if a.done != nil {
		a.done()
		a.done = nil
	}
}

func (s *session) send(a *answer, out *[control.MaxFrame]byte) error {
	frame := control.AppendFrame(out[:0], a.header, a.payload)
	if len(a.fds) > 0 {
		return s.conn.SendNow(frame, a.fds)
	}
	a.close() // a send that waits for its peer keeps no turn
	return s.conn.Send(frame, replyTime)
}

// handle fills in the answer to one frame.
func (s *session) handle(ctx context.Context, h control.Header, payload []byte, a *answer) error {
	if (s.usage == nil) != (h.Type == control.TypeHello) { // HELLO comes first, and once
		return errProtocol
	}
	if h.Type == control.TypeHello {
		return s.hello(payload, a)
	}
	said := payload
	if h.Type == control.TypeRedeem || h.Type == control.TypeName { // a ticket is another each time
		said = payload[min(len(payload), len(control.Redeem{}.Ticket)):]
	}
	end, err := s.server.opt.Mount.Task(s.peer.uid, "frame "+strconv.Itoa(int(h.Type)), said)
	if err != nil {
		return &control.Refusal{Errno: syscall.EIO, Text: err.Error()}
	}
	err = s.answer(ctx, h, payload, a)
	end() // not where it panics: the next daemon finds its mark
	return err
}

func (s *session) answer(ctx context.Context, h control.Header, payload []byte, a *answer) error {
	switch h.Type {
	case control.TypeRedeem:
		return s.traced(ctx, "REDEEM", a, func(ctx context.Context) error { return s.redeem(ctx, h.ID, payload, a) })
	case control.TypeName:
		return s.name(payload, a)
	case control.TypeLookup:
		return s.traced(ctx, "LOOKUP", a, func(ctx context.Context) error { return s.lookup(ctx, h.ID, payload, a) })
	case control.TypeAck:
		return s.ack(payload)
	case control.TypeRelease:
		objects, err := control.ParseRelease(payload)
		s.release(objects)
		return err
	case control.TypeStats:
		moved, err := control.ParseStats(payload)
		if err == nil {
			s.server.report(s.usage, moved)
		}
		return err
	case control.TypePrefetch:
		return s.prefetch(payload, a)
	case control.TypeRecord:
		return s.touches(ctx, payload, a)
	case control.TypeBring:
		return s.bring(ctx, payload, a)
	case control.TypeChanges:
		return s.changes(ctx, payload, a)
	case control.TypeReaders:
		if len(payload) > 0 {
			return errProtocol
		}
		count := control.ReaderCount{Readers: s.server.countReaders(s.peer.uid)}
		a.header.Type, a.payload = control.TypeCount, count.AppendTo
		return nil
	}
	if drafts.IsDraft(h.Type) {
		return s.draft(ctx, h.Type, payload, a)
	}
	if kv.IsKV(h.Type) {
		return s.block(ctx, h.Type, payload, a)
	}
	return errProtocol
}

// traced handles a request of a reader as a trace of its own: the connection lasts too long to be one.
func (s *session) traced(ctx context.Context, name string, a *answer, handle func(context.Context) error) error {
	ctx, span := s.server.opt.Trace.Root(ctx, name)
	err := handle(ctx)
	class := ""
	var refusal *control.Refusal
	switch {
	case errors.As(err, &refusal):
		class = unix.ErrnoName(refusal.Errno)
	case err != nil:
		class = "failed"
	}
	span.Int("descriptors", int64(len(a.fds))).End(class)
	return err
}

func (s *session) hello(payload []byte, a *answer) error {
	hello, err := control.ParseHello(payload)
	if err != nil {
		return err
	}
	if hello.Min > control.Version || hello.Max < control.Version {
		return &control.Refusal{Errno: syscall.EPROTONOSUPPORT, Text: fmt.Sprintf("this daemon speaks version %d of the control protocol, the reader %d to %d", control.Version, hello.Min, hello.Max)}
	}
	s.reader = readerID{s.peer.uid, hello.Reader}
	s.usage = s.server.join(hello.Name, s.reader)
	_ = s.conn.SetReadDeadline(time.Time{}) // fails on a closed connection, as the next read will
	welcome := control.Welcome{Version: control.Version, Epoch: s.server.Epoch, MaxLeases: leasesPerSession, MaxPaths: control.MaxPaths}
	if s.server.opt.Mount.ReadOnly() == nil {
		welcome.Flags = control.WelcomeReadOnly
	}
	if s.server.opt.Drafts != nil {
		welcome.Flags |= control.WelcomeDrafts
	}
	if s.server.opt.KV != nil {
		welcome.Flags |= control.WelcomeKV
	}
	if s.server.changes.file != nil {
		welcome.Flags |= control.WelcomeChanges
	}
	welcome.Flags |= control.WelcomeFields
	a.header.Type, a.payload = control.TypeWelcome, welcome.AppendTo
	return nil
}

func (s *session) redeem(ctx context.Context, id uint32, payload []byte, a *answer) error {
	q, err := control.ParseRedeem(payload)
	if err != nil {
		return err
	}
	if err := s.roomFor(id, len(q.Objects)); err != nil {
		return err
	}
	of, err := s.server.tickets.redeem(q.Ticket, s.peer.uid, q.Objects)
	if err != nil {
		return err
	}
	if a.done, err = s.server.answering.wait(ctx, s.peer.uid); err != nil {
		return err
	}
	objects := make([]control.Object, len(q.Objects))
	for i, o := range q.Objects {
		objects[i] = s.open(o, of[i], a)
	}
	s.expectAck(id, objects, of)
	a.header.Type = control.TypeFDs
	a.payload = func(b []byte) []byte { return control.AppendFDs(b, objects) }
	return nil
}

// roomFor checks that the connection may lease n more objects.
func (s *session) roomFor(id uint32, n int) error {
	_, twice := s.pending[id]
	leases := s.server.leases
	switch {
	case twice:
		return errProtocol
	case len(s.pending) >= unacked:
		return &control.Refusal{Errno: syscall.EAGAIN, Text: "acknowledge the descriptors that came before"}
	case s.given+n > leasesPerSession:
		return &control.Refusal{Errno: syscall.EAGAIN, Text: fmt.Sprintf("this connection leases %d objects, and may lease %d: release some", s.given, leasesPerSession)}
	case !leases.Fit(s.peer.uid, int64(n)):
		return &control.Refusal{Errno: syscall.EAGAIN, Text: fmt.Sprintf("the connections of this user lease as many objects as they may, of %d in all: release some", leasesInAll)}
	case s.given+n > leasesOfMany && !leases.Fit(s.peer.uid, int64(n)+leases.Each()/2):
		return &control.Refusal{Errno: syscall.EAGAIN, Text: fmt.Sprintf("this connection leases %d objects. The rest of its user's share is for connections with at most %d: release some", s.given, leasesOfMany)}
	}
	return nil
}

// expectAck leases the objects that have a descriptor until the peer says whether they arrived. of are the objects in the
// same order.
func (s *session) expectAck(id uint32, objects []control.Object, of []*layout.Object) {
	var given []uint64
	for i, o := range objects {
		if o.FD >= 0 {
			given = append(given, o.ID)
			s.lease(o.ID, of[i])
		}
	}
	if len(given) > 0 {
		s.pending[id] = given
	}
}

// lease is an object whose descriptors the peer was given.
type lease struct {
	object       *layout.Object
	given, acked int // descriptors; those that the peer has not acknowledged are given, too
	unpin        func()
}

// lease books an object that the peer was given, and pins its file.
func (s *session) lease(id uint64, o *layout.Object) {
	l := s.leases[id]
	if l == nil {
		l = &lease{object: o, unpin: storage.Pin(o)}
		s.leases[id] = l
	}
	l.given++
	s.given++
	s.server.leases.Book(s.peer.uid, 1)
}

// unlease is the opposite of lease.
func (s *session) unlease(objects ...uint64) {
	for _, o := range objects {
		l := s.leases[o]
		if l.given--; l.given == 0 {
			l.unpin()
			delete(s.leases, o)
		}
	}
	s.given -= len(objects)
	s.server.leases.Book(s.peer.uid, -int64(len(objects)))
}

// leased returns an object that the peer was given and has acknowledged, nil for any other.
func (s *session) leased(id uint64) *layout.Object {
	if l := s.leases[id]; l != nil && l.acked > 0 {
		return l.object
	}
	return nil
}

func (s *session) ack(payload []byte) error {
	ack, err := control.ParseAck(payload)
	if err != nil {
		return err
	}
	given := s.pending[ack.ID]
	delete(s.pending, ack.ID)
	if int(ack.Received) != len(given) { // the peer had no room for some, and closed the rest
		s.unlease(given...)
		return nil
	}
	for _, o := range given {
		s.leases[o].acked++
	}
	return nil
}

func (s *session) release(objects []uint64) {
	for _, o := range objects {
		if s.leased(o) != nil {
			s.leases[o].acked--
			s.unlease(o)
		}
	}
}

func (s *session) name(payload []byte, a *answer) error {
	q, err := control.ParseRedeem(payload)
	if err != nil {
		return err
	}
	of, err := s.server.tickets.redeem(q.Ticket, s.peer.uid, q.Objects)
	if err != nil {
		return err
	}
	names := make([]control.Named, len(of))
	for i, o := range of {
		names[i] = control.Named{Object: q.Objects[i], Name: o.Name}
	}
	a.header.Type = control.TypeNames
	a.payload = func(b []byte) []byte { b, _ = control.AppendNames(b, names); return b }
	return nil
}

func (s *session) prefetch(payload []byte, a *answer) error {
	ranges, err := control.ParseObjectRanges(payload)
	if err != nil {
		return err
	}
	said := make(announcement, len(ranges))
	for i, g := range ranges {
		o := s.leased(g.Object)
		if o == nil {
			return &control.Refusal{Errno: syscall.EACCES, Text: fmt.Sprintf("object %d is not leased by this connection", g.Object)}
		}
		var body layout.Body
		body.Add(o, 0, o.Size)
		said[i] = prefetchPart{&body, []control.Range{g.Range}}
	}
	if !s.server.prefetch.add(planner{s.peer.uid, s}, said) {
		return &control.Refusal{Errno: syscall.EAGAIN, Text: "too much is being prefetched already"}
	}
	a.header.Type = control.TypeDone
	return nil
}
