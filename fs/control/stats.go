package control

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/observe/status"
)

// client is a name under which a user's readers report. Users share no account: nobody can use up the reasons of another.
type client struct {
	uid  uint32
	name string
}

// usage sums up the reports of one client's readers. The channel's lock guards it.
type usage struct {
	connections int
	moved       map[pathReason]amount
	fields      map[pathField]int64 // bytes
}

// pathReason is a path and why a reader took it.
type pathReason struct {
	path   control.PathNumber
	reason string
}

// pathField is a path, and the field of samples whose values took it.
type pathField struct {
	path  control.PathNumber
	field string
}

type amount struct{ bytes, reads int64 }

func newUsage() *usage { return &usage{moved: map[pathReason]amount{}, fields: map[pathField]int64{}} }

// readerID tells readers apart. Clients draw the numbers, so each counts for one user only.
type readerID struct{ uid, number uint32 }

// Limits of the names, reasons and fields that the status tells apart: clients choose them.
const (
	usageNames  = 64 // of all users
	usageChoice = 48 // reasons of one name of one user, and one for each path that stands for the rest
	usageFields = 48 // likewise
)

// others stands for names, reasons and fields beyond these limits.
const others = "(others)"

// join counts a connection whose peer has said HELLO.
func (s *Server) join(name string, r readerID) *usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "" {
		name = "(unnamed)"
	}
	k := client{r.uid, name}
	if s.usages[k] == nil && !s.names.Reserve(r.uid, 1) {
		k = client{name: others}
	}
	u := s.usages[k]
	if u == nil {
		u = newUsage()
		s.usages[k] = u
	}
	u.connections++
	if r.number != 0 {
		s.readers[r]++
	}
	return u
}

// leave is the end of a connection that has joined.
func (s *Server) leave(u *usage, r readerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.connections--
	if r.number == 0 {
		return
	}
	if s.readers[r]--; s.readers[r] == 0 {
		delete(s.readers, r)
	}
}

// readersOfOthers bounds how many readers of another user count: as many as a host has GPUs. A user who draws many numbers
// could otherwise leave all others two threads each.
const readersOfOthers = 16

// countReaders returns how many readers are connected, as a reader of uid counts them.
func (s *Server) countReaders(uid uint32) (n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := map[uint32]uint32{}
	for r := range s.readers {
		if of[r.uid]++; r.uid == uid || of[r.uid] <= readersOfOthers {
			n++
		}
	}
	return n
}

// report adds a report to a client's sums, which stop at the largest number.
func (s *Server) report(u *usage, moved []control.PathReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range moved {
		k := pathReason{m.Path, m.Reason}
		if _, known := u.moved[k]; !known && len(u.moved) >= usageChoice {
			k.reason = others
		}
		u.add(k, amount{m.Bytes, m.Reads})
		if m.Field == "" {
			continue
		}
		f := pathField{m.Path, m.Field}
		if _, known := u.fields[f]; !known && len(u.fields) >= usageFields {
			f.field = others
		}
		u.addField(f, m.Bytes)
	}
}

func (u *usage) addField(k pathField, bytes int64) {
	u.fields[k] += min(bytes, math.MaxInt64-u.fields[k])
}

func (u *usage) add(k pathReason, a amount) {
	sum := u.moved[k]
	sum.bytes += min(a.bytes, math.MaxInt64-sum.bytes)
	sum.reads += min(a.reads, math.MaxInt64-sum.reads)
	u.moved[k] = sum
}

// byName sums up the usage of all users under each name.
func (s *Server) byName() map[string]*usage {
	all := map[string]*usage{}
	for of, u := range s.usages {
		sum := all[of.name]
		if sum == nil {
			sum = newUsage()
			all[of.name] = sum
		}
		sum.connections += u.connections
		for k, a := range u.moved {
			sum.add(k, a)
		}
		for k, bytes := range u.fields {
			sum.addField(k, bytes)
		}
	}
	return all
}

// admit counts a connection of uid in, or says why not; me is the daemon's user. An ordinary user's daemon cannot open
// descriptors on a read-only mount, as root's does. So it gives them only to its own user, who can open the files anyway.
func (s *Server) admit(me, uid uint32) *control.Refusal {
	switch {
	case me != 0 && uid != me:
		s.turnAway()
		return &control.Refusal{Errno: syscall.EACCES, Text: fmt.Sprintf("this is the mount of user %d, which serves readers of that user alone: let root mount it for all", me)}
	case !s.sessions.Reserve(uid, 1):
		s.turnAway()
		return &control.Refusal{Errno: syscall.EAGAIN, Text: fmt.Sprintf("too many connections: at most %d of a user and %d in all", s.sessions.Each(), s.sessions.Limit())}
	}
	return nil
}

func (s *Server) turnAway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turnedAway++
}

func (s *Server) disable(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = why
}

// status is the usage as the status shows it.
func (u *usage) status(name string) status.Client {
	s := status.Client{Name: name, Connections: u.connections, Bytes: map[string]int64{}, Reads: map[string]int64{}, Choices: []status.PathUse{}, Fields: []status.FieldUse{}}
	for k, sum := range u.moved {
		path := k.path.String()
		s.Bytes[path] += min(sum.bytes, math.MaxInt64-s.Bytes[path])
		s.Reads[path] += min(sum.reads, math.MaxInt64-s.Reads[path])
		s.Choices = append(s.Choices, status.PathUse{Path: path, Reason: k.reason, Reads: sum.reads, Bytes: sum.bytes})
	}
	slices.SortFunc(s.Choices, func(a, b status.PathUse) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Reason, b.Reason))
	})
	for k, bytes := range u.fields {
		s.Fields = append(s.Fields, status.FieldUse{Field: k.field, Path: k.path.String(), Bytes: bytes})
	}
	slices.SortFunc(s.Fields, func(a, b status.FieldUse) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Path, b.Path))
	})
	return s
}

// Status is the control channel in the status.
func (s *Server) Status() status.Control {
	all := status.Control{Leases: s.leases.Booked(), Connections: int(s.sessions.Booked()), Refused: s.refused.Load(), PrefetchedBytes: s.prefetch.bytes.Load(), Changed: s.changes.count(), Clients: []status.Client{}}
	all.Tickets, all.Issued = s.tickets.counts()
	if err := s.opt.Mount.ReadOnly(); err != nil {
		all.WhyNot = err.Error()
	}
	all.ReadOnly = all.WhyNot == ""
	s.mu.Lock()
	defer s.mu.Unlock()
	all.On, all.Why = s.off == "" && s.bound.Load(), s.off
	all.TurnedAway, all.Readers = s.turnedAway, len(s.readers)
	for name, u := range s.byName() {
		all.Clients = append(all.Clients, u.status(name))
	}
	slices.SortFunc(all.Clients, func(a, b status.Client) int { return strings.Compare(a.Name, b.Name) })
	return all
}
