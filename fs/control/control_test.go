package control

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

// localBytes is an origin that says that its objects are files of this machine.
type localBytes struct{ layout.Origin }

func (localBytes) OpenObject(context.Context, *layout.Object) (int, error) {
	return -1, errors.New("not in this test")
}
func (localBytes) OpenForOthers(*layout.Object) (int, error) {
	return -1, errors.New("not in this test")
}
func (localBytes) StillGrants(*layout.Object, int) error { return nil }
func (localBytes) Borrow(context.Context, *layout.Object) (int, func(), error) {
	return -1, nil, errors.New("not in this test")
}

// remoteBytes is an origin that keeps its objects in segments. Only its type is looked at.
type remoteBytes struct {
	layout.Origin
	storage.Segmented
}

func localObject(name string, size int) *layout.Object {
	o := layout.Bytes(name, make([]byte, size))
	o.Origin = localBytes{o.Origin}
	return o
}

// ask sends EXTENTS as the kernel would, with the buffer that another reply left behind.
func ask(t *testing.T, c *Server, b *layout.Body, q control.ExtentsRequest, room int) (control.Batch, error) {
	t.Helper()
	in, err := control.ParseExtentsRequest(q.AppendTo(nil))
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, control.ExtentsHeaderSize+room*control.ExtentSize)
	if err := c.extents(b, in, room, 7, out); err != nil {
		return control.Batch{}, err
	}
	batch, err := control.ParseBatch(out)
	if err != nil {
		t.Fatal(err)
	}
	return batch, nil
}

func TestExtentsComeInAnswersOfAnySize(t *testing.T) {
	var b layout.Body
	header, o, p := layout.Inline(make([]byte, 128)), localObject("o", 5000), localObject("p", 100)
	b.Add(header, 0, 128)
	b.AddStrided(o, 10, 20, 30, 100)
	b.Add(p, 0, 100)
	c := New(Options{})
	want := []control.Extent{
		{Logical: 0, Length: 128, Stride: 128, Count: 1, Flags: control.ExtentMount},
		{Logical: 128, Length: 20, Offset: 10, Object: 1, Stride: 30, Count: 100},
		{Logical: 2128, Length: 100, Offset: 0, Object: 2, Stride: 100, Count: 1},
	}
	for room := 1; room <= 4; room++ {
		var got []control.Extent
		q := control.ExtentsRequest{Length: math.MaxInt64}
		for {
			a, err := ask(t, c, &b, q, room)
			if err != nil || len(a.Extents) > room || a.Total != int64(len(want)-len(got)) {
				t.Fatalf("room %d: %+v, %v", room, a, err)
			}
			got = append(got, a.Extents...)
			if a.Last() {
				break
			}
			q.Cursor = a.Cursor
		}
		if !slices.Equal(got, want) {
			t.Errorf("room %d: %+v, want %+v", room, got, want)
		}
	}
	if _, err := ask(t, c, &b, control.ExtentsRequest{Length: 1}, 0); err == nil {
		t.Error("no room and no COUNT is a question without an answer")
	}
	if a, err := ask(t, c, &b, control.ExtentsRequest{Flags: control.ExtentsCount, Offset: 130, Length: 3000}, 0); err != nil || a.Total != 3 || len(a.Extents) != 0 {
		t.Errorf("count: %+v, %v; want a part of a piece, 99 pieces, and p", a, err)
	}
	if a, err := ask(t, c, &b, control.ExtentsRequest{Offset: b.Size(), Length: 5}, 1); err != nil || !a.Last() || a.Total != 0 {
		t.Errorf("beyond the end: %+v, %v", a, err)
	}
}

func TestAnAnswerNamesAsManyObjectsAsATicketCan(t *testing.T) {
	var b layout.Body
	for range 100 {
		b.Add(localObject("o", 10), 0, 10)
	}
	c := New(Options{})
	a, err := ask(t, c, &b, control.ExtentsRequest{Flags: control.ExtentsTicket, Length: math.MaxInt64}, 200)
	if err != nil || len(a.Extents) != control.MaxObjects || a.Last() || a.Flags&control.ExtentsTicket == 0 {
		t.Fatalf("%d extents, flags %v, %v", len(a.Extents), a.Flags, err)
	}
	if of, err := c.tickets.redeem(a.Ticket, 7, a.Objects()); err != nil || len(of) != control.MaxObjects {
		t.Error(len(of), err)
	}
	if a, err = ask(t, c, &b, control.ExtentsRequest{Length: math.MaxInt64}, 200); err != nil || len(a.Extents) != 100 || !a.Last() {
		t.Errorf("without a ticket: %d extents, %v", len(a.Extents), err)
	}
}

func TestFactsOfABody(t *testing.T) {
	c := New(Options{})
	o := localObject("o", 1<<20)
	var whole, part, mixed, made, empty layout.Body
	whole.Add(o, 0, o.Size)
	part.Add(o, 4096, 100)
	mixed.Add(layout.Inline(make([]byte, 64)), 0, 64)
	mixed.Add(o, 0, 10)
	made.Add(layout.Bytes("of no machine's file", make([]byte, 5)), 0, 5)
	for what, k := range map[string]struct {
		body *layout.Body
		want facts
	}{
		"whole": {&whole, facts{control.InfoWhole | control.InfoBypass, 1 << 20}}, "part": {&part, facts{control.InfoBypass, 4096}},
		"mixed": {&mixed, facts{control.InfoBypass | control.InfoMount, 1 << 20}}, "made": {&made, facts{control.InfoMount, 1 << 20}},
		"empty": {&empty, facts{0, 1 << 20}},
	} {
		if got := c.factsOf(1, k.body); got != k.want {
			t.Errorf("%s: %+v, want %+v", what, got, k.want)
		}
	}
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	errors.As(err, &errno)
	return errno
}

func TestTicketsAreForOneUserOneTimeAndTenSeconds(t *testing.T) {
	tickets := newTickets()
	now := time.Unix(1000, 0)
	tickets.now = func() time.Time { return now }
	one, two := localObject("1", 1), localObject("2", 1)
	issue := func() control.Ticket { return tickets.issue(7, map[uint64]*layout.Object{1: one, 2: two}) }
	redeem := func(k control.Ticket, uid uint32, o ...uint64) syscall.Errno {
		of, err := tickets.redeem(k, uid, o)
		for i := range of {
			if want := map[uint64]*layout.Object{1: one, 2: two}[o[i]]; of[i] != want {
				t.Errorf("object %d is %v", o[i], of[i])
			}
		}
		return errnoOf(err)
	}

	k := issue()
	if got := redeem(k, 8, 1); got != syscall.EACCES {
		t.Errorf("another user: %v", got)
	}
	if got := redeem(k, 7, 1, 2); got != 0 {
		t.Errorf("the user: %v", got)
	}
	if got := redeem(k, 7, 1); got != syscall.ESTALE {
		t.Errorf("a second time: %v", got)
	}
	if got := redeem(issue(), 7, 1, 3); got != syscall.EACCES {
		t.Errorf("an object that is not named: %v", got)
	}
	if got := redeem(control.Ticket{}, 7); got != syscall.ESTALE {
		t.Errorf("forged: %v", got)
	}
	k = issue()
	now = now.Add(ticketLife)
	if got := redeem(k, 7, 1); got != syscall.ESTALE {
		t.Errorf("after ten seconds: %v", got)
	}
}

func TestTicketsAreBounded(t *testing.T) {
	tickets := newTickets()
	mine := tickets.issue(1, nil)
	for uid := uint32(100); uid < 140; uid++ {
		for range 2 * ticketsPerUID {
			tickets.issue(uid, nil)
		}
	}
	if live, _ := tickets.counts(); live > ticketsInAll {
		t.Errorf("%d tickets", live)
	}
	if _, err := tickets.redeem(mine, 1, nil); err != nil {
		t.Errorf("others pushed out the ticket of a modest user: %v", err)
	}
	last := tickets.issue(100, nil)
	if _, err := tickets.redeem(last, 100, nil); err != nil {
		t.Errorf("the newest ticket of a greedy user: %v", err)
	}
	tickets.now = func() time.Time { return time.Now().Add(time.Minute) }
	tickets.issue(5, nil)
	if live, _ := tickets.counts(); live != 1 || len(tickets.byUID) != 1 {
		t.Errorf("%d tickets of %d users are left after their time", live, len(tickets.byUID))
	}
}

func TestPrefetchNeverWaits(t *testing.T) {
	p := newPrefetcher(nil)
	o := localObject("a", 10)
	var body layout.Body
	body.Add(o, 0, o.Size)
	a := announcement{{&body, []control.Range{{Length: 10}}}}
	taken := 0
	for p.add(planner{uid: greedy}, a) {
		taken++
	}
	if taken != 64 {
		t.Errorf("%d announcements of one user are taken, want half of 128", taken)
	}
	for _, uid := range []uint32{modest, uint32(os.Geteuid())} {
		if !p.add(planner{uid: uid}, a) {
			t.Errorf("user %d finds no room", uid)
		}
	}
	// They are served before the rest of the greedy one's.
	for range 3 {
		if _, err := p.queue.next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if left := p.queue.room.Booked(); left != 63 || len(p.queue.of) != 1 || len(p.queue.of[greedy]) != 63 {
		t.Errorf("%d announcements are left, of %d users", left, len(p.queue.of))
	}
	ctx, cancel := context.WithCancel(t.Context())
	for range 63 {
		if _, err := p.queue.next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if _, err := p.queue.next(ctx); !errors.Is(err, context.Canceled) || len(p.queue.of) != 0 {
		t.Errorf("an empty queue: %v", err)
	}
}

// Users of these tests. None of them runs them.
const (
	greedy = 70001 + iota
	modest
)

// TestPrefetchTakesAWholeFrame has a reader say as many ranges as a frame may have, while nothing else is queued.
func TestPrefetchTakesAWholeFrame(t *testing.T) {
	c := New(Options{})
	o := localObject("a", 4*control.MaxRanges)
	id := c.objects.id(o)
	s := &session{server: c, peer: &peer{uid: modest}, leases: map[uint64]*lease{id: {object: o, given: 1, acked: 1}}}
	ranges := make([]control.ObjectRange, control.MaxRanges)
	for i := range ranges {
		ranges[i] = control.ObjectRange{Object: id, Range: control.Range{Offset: int64(4 * i), Length: 4}}
	}
	var a answer
	if err := s.prefetch(control.AppendObjectRanges(nil, ranges), &a); err != nil || a.header.Type != control.TypeDone {
		t.Errorf("an idle daemon answers %d ranges with %d: %v", len(ranges), a.header.Type, err)
	}
}

// planned is a cache that keeps what it is told in mind.
type planned struct {
	runs map[any][]layout.Run
}

func (p *planned) EndPlan(r any) { delete(p.runs, r) }

func (p *planned) Planned(each func(any, []layout.Run)) {
	for r, runs := range p.runs {
		each(r, runs)
	}
}
func (p *planned) Plan(r any, runs []layout.Run) bool {
	p.runs[r] = append(p.runs[r], runs...)
	return true
}

// TestPrefetchOfSeveralOrigins plans a view over objects of two origins: the cache gets all of them, in order.
func TestPrefetchOfSeveralOrigins(t *testing.T) {
	cache := &planned{map[any][]layout.Run{}}
	p := newPrefetcher(cache)
	reader := planner{by: "reader"}
	one, two := &remoteBytes{}, &remoteBytes{}
	var body layout.Body
	for i := range 4 {
		body.Add(&layout.Object{Name: strconv.Itoa(i), Size: 10, Origin: []layout.Origin{one, two}[i%2]}, 0, 10)
	}
	if !p.add(reader, announcement{{&body, []control.Range{{Length: 40}}}}) || len(cache.runs[reader]) != 4 {
		t.Fatalf("the cache is told of %v", cache.runs)
	}
	for i, r := range cache.runs[reader] {
		if r.Object.Name != strconv.Itoa(i) || r.Length != 10 {
			t.Errorf("run %d is %d bytes of %s", i, r.Length, r.Object.Name)
		}
	}
	if p.endPlan(reader); len(cache.runs) > 0 {
		t.Errorf("the plan of a reader that has ended is left: %v", cache.runs)
	}
}

// TestPlansEndWithTheirFile has two users plan the same file: neither takes the other's room, and both end with it.
func TestPlansEndWithTheirFile(t *testing.T) {
	cache := &planned{map[any][]layout.Run{}}
	p := newPrefetcher(cache)
	var body layout.Body
	body.Add(&layout.Object{Name: "a", Size: 10, Origin: &remoteBytes{}}, 0, 10)
	for _, reader := range []planner{{greedy, 7}, {modest, 7}, {greedy, 8}, {greedy, "a connection"}} {
		if !p.add(reader, announcement{{&body, []control.Range{{Length: 10}}}}) || reader.User() != reader.uid {
			t.Fatal("there is no room")
		}
	}
	if len(cache.runs) != 4 {
		t.Errorf("plans of %d readers", len(cache.runs))
	}
	p.endFile(7)
	p.endFile(9)
	if len(cache.runs) != 2 || len(p.byFile) != 1 {
		t.Errorf("after the file is closed there are plans of %d readers, and %d files", len(cache.runs), len(p.byFile))
	}
}

// leased is an origin whose files somebody has a lease of.
type leased struct{ localBytes }

func (leased) Borrow(ctx context.Context, _ *layout.Object) (int, func(), error) {
	<-ctx.Done()
	return -1, nil, ctx.Err()
}

// TestPrefetchWaitsOnceForLeases has an announcement be of many pieces of a leased file: others wait for its end.
func TestPrefetchWaitsOnceForLeases(t *testing.T) {
	o := localObject("a", 1<<20)
	o.Origin = leased{}
	var body layout.Body
	for at := int64(0); at < o.Size; at += 1024 {
		body.Add(o, at, 32)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		newPrefetcher(nil).advise(t.Context(), announcement{{&body, []control.Range{{Length: body.Size()}}}})
		if took := time.Since(began); took != patienceAhead {
			t.Errorf("an announcement of %d pieces takes %v, want %v", body.Runs(), took, patienceAhead)
		}
	})
}

// TestPrefetchIsBounded has a message name all of a file of many pieces, as often as it can.
func TestPrefetchIsBounded(t *testing.T) {
	var body layout.Body
	o := localObject("a", 1<<20)
	for at := int64(0); at < o.Size; at += 64 {
		body.Add(o, at, 32)
	}
	a := announcement{{&body, slices.Repeat([]control.Range{{Length: body.Size()}}, control.MaxRanges)}}
	n := 0
	for range a.runs {
		n++
	}
	if n != runsPerAnnouncement {
		t.Errorf("%d pieces are looked at, want %d", n, runsPerAnnouncement)
	}
}

func TestWhatClientsReportIsBounded(t *testing.T) {
	c := New(Options{})
	u := c.join("reader", readerID{})
	for i := range 10 * usageChoice {
		for p := range control.Paths {
			c.report(u, []control.PathReport{{Path: p, Reason: strconv.Itoa(i), Bytes: 2, Reads: 1}})
		}
	}
	s := u.status("reader")
	if len(s.Choices) > usageChoice+int(control.Paths) {
		t.Errorf("%d reasons are kept", len(s.Choices))
	}
	for p := range control.Paths {
		if name := p.String(); s.Bytes[name] != 20*usageChoice || s.Reads[name] != 10*usageChoice {
			t.Errorf("%s: %d bytes in %d reads: some were lost", name, s.Bytes[name], s.Reads[name])
		}
	}
	for range 3 {
		c.report(u, []control.PathReport{{Path: control.PathHost, Reason: "much", Bytes: math.MaxInt64, Reads: math.MaxInt64}})
	}
	if s = u.status("reader"); s.Bytes["host"] != math.MaxInt64 || s.Reads["host"] != math.MaxInt64 {
		t.Errorf("after too much: %d bytes in %d reads", s.Bytes["host"], s.Reads["host"])
	}
	for uid := range uint32(10) {
		for i := range 10 * usageNames {
			c.join(strconv.Itoa(i), readerID{greedy + 10 + uid, 0})
		}
	}
	fields := c.join("fields", readerID{})
	for i := range 10 * usageFields {
		c.report(fields, []control.PathReport{{Path: control.PathHost, Field: strconv.Itoa(i), Bytes: 3, Reads: 1}, {Path: control.PathDirect, Bytes: 1, Reads: 1}})
	}
	sum := int64(0)
	for _, f := range fields.status("fields").Fields {
		sum += f.Bytes
	}
	if s = c.byName()["fields"].status("fields"); len(s.Fields) > usageFields+int(control.Paths) || sum != 30*usageFields || s.Fields[0].Field != others {
		t.Errorf("%d fields are kept, with %d bytes: %+v", len(s.Fields), sum, s.Fields[:1])
	}
	if len(c.usages) > usageNames+usageNames/2+1 { // those of the daemon's own user come on top
		t.Errorf("%d names are kept", len(c.usages))
	}
}

func TestWhoIsAdmitted(t *testing.T) {
	c := New(Options{})
	for _, k := range []struct {
		me, uid uint32
		want    syscall.Errno
	}{{0, 0, 0}, {0, 7, 0}, {7, 7, 0}, {7, 8, syscall.EACCES}, {7, 0, syscall.EACCES}} {
		var got syscall.Errno
		if refusal := c.admit(k.me, k.uid); refusal != nil {
			got = refusal.Errno
		}
		if got != k.want {
			t.Errorf("user %d at the daemon of user %d: %v, want %v", k.uid, k.me, got, k.want)
		}
	}
	for range sessionsPerUID {
		if refusal := c.admit(0, 9); refusal != nil {
			t.Fatal(refusal)
		}
	}
	if refusal := c.admit(0, 9); refusal == nil || refusal.Errno != syscall.EAGAIN {
		t.Errorf("one connection too many: %v", refusal)
	}
	if n := c.sessions.Booked(); n != sessionsPerUID+3 || c.turnedAway != 3 {
		t.Errorf("%d connections in all, %d turned away", n, c.turnedAway)
	}
	for range sessionsPerUID {
		c.sessions.Book(9, -1)
	}
	if refusal := c.admit(0, 9); refusal != nil {
		t.Errorf("after all have gone: %v", refusal)
	}
}
