package fs

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
	moved       map[choice]amount
}

// choice is a path and why a reader took it.
type choice struct {
	path   control.Path
	reason string
}

type amount struct{ bytes, reads int64 }

// readerID tells readers apart. Clients draw the numbers, so each counts for one user only.
type readerID struct{ uid, number uint32 }

// Limits of the names and reasons that the status tells apart: clients choose both.
const (
	usageNames  = 64 // of all users
	usageChoice = 48 // of one name of one user, and one for each path that stands for the rest
)

// others stands for names and reasons beyond these limits.
const others = "(others)"

// join counts a connection whose peer has said HELLO.
func (c *channel) join(name string, r readerID) *usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name == "" {
		name = "(unnamed)"
	}
	k := client{r.uid, name}
	if c.usages[k] == nil && !c.names.Reserve(r.uid, 1) {
		k = client{name: others}
	}
	u := c.usages[k]
	if u == nil {
		u = &usage{moved: map[choice]amount{}}
		c.usages[k] = u
	}
	u.connections++
	if r.number != 0 {
		c.readers[r]++
	}
	return u
}

// leave is the end of a connection that has joined.
func (c *channel) leave(u *usage, r readerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u.connections--
	if r.number == 0 {
		return
	}
	if c.readers[r]--; c.readers[r] == 0 {
		delete(c.readers, r)
	}
}

// readersOfOthers bounds how many readers of another user count: as many as a host has GPUs. A user who draws many numbers
// could otherwise leave all others two threads each.
const readersOfOthers = 16

// countReaders returns how many readers are connected, as a reader of uid counts them.
func (c *channel) countReaders(uid uint32) (n uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := map[uint32]uint32{}
	for r := range c.readers {
		if of[r.uid]++; r.uid == uid || of[r.uid] <= readersOfOthers {
			n++
		}
	}
	return n
}

// report adds a report to a client's sums, which stop at the largest number.
func (c *channel) report(u *usage, moved []control.Moved) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range moved {
		k := choice{m.Path, m.Reason}
		if _, known := u.moved[k]; !known && len(u.moved) >= usageChoice {
			k.reason = others
		}
		u.add(k, amount{m.Bytes, m.Reads})
	}
}

func (u *usage) add(k choice, a amount) {
	sum := u.moved[k]
	sum.bytes += min(a.bytes, math.MaxInt64-sum.bytes)
	sum.reads += min(a.reads, math.MaxInt64-sum.reads)
	u.moved[k] = sum
}

// byName sums up the usage of all users under each name.
func (c *channel) byName() map[string]*usage {
	all := map[string]*usage{}
	for of, u := range c.usages {
		sum := all[of.name]
		if sum == nil {
			sum = &usage{moved: map[choice]amount{}}
			all[of.name] = sum
		}
		sum.connections += u.connections
		for k, a := range u.moved {
			sum.add(k, a)
		}
	}
	return all
}

// admit counts a connection of uid in, or says why not; me is the daemon's user. An ordinary user's daemon cannot open
// descriptors on a read-only mount, as root's does. So it gives them only to its own user, who can open the files anyway.
func (c *channel) admit(me, uid uint32) *control.Refusal {
	switch {
	case me != 0 && uid != me:
		c.turnAway()
		return &control.Refusal{Errno: syscall.EACCES, Text: fmt.Sprintf("this is the mount of user %d, which serves readers of that user alone: let root mount it for all", me)}
	case !c.sessions.Reserve(uid, 1):
		c.turnAway()
		return &control.Refusal{Errno: syscall.EAGAIN, Text: fmt.Sprintf("too many connections: at most %d of a user and %d in all", c.sessions.Each(), c.sessions.Limit())}
	}
	return nil
}

func (c *channel) turnAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turnedAway++
}

func (c *channel) disable(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = why
}

// status is the usage as the status shows it.
func (u *usage) status(name string) status.Client {
	s := status.Client{Name: name, Connections: u.connections, Bytes: map[string]int64{}, Reads: map[string]int64{}, Choices: []status.Choice{}}
	for k, sum := range u.moved {
		path := k.path.String()
		s.Bytes[path] += min(sum.bytes, math.MaxInt64-s.Bytes[path])
		s.Reads[path] += min(sum.reads, math.MaxInt64-s.Reads[path])
		s.Choices = append(s.Choices, status.Choice{Path: path, Reason: k.reason, Reads: sum.reads, Bytes: sum.bytes})
	}
	slices.SortFunc(s.Choices, func(a, b status.Choice) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Reason, b.Reason))
	})
	return s
}

func (m *Mount) controlStatus() status.Control {
	c := m.control
	s := status.Control{Leases: c.leases.Booked(), Connections: int(c.sessions.Booked()), Refused: c.refused.Load(), PrefetchedBytes: c.prefetch.bytes.Load(), Clients: []status.Client{}}
	s.Tickets, s.Issued = c.tickets.counts()
	if err := m.readOnlyMount(); err != nil {
		s.WhyNot = err.Error()
	}
	s.ReadOnly = s.WhyNot == ""
	c.mu.Lock()
	defer c.mu.Unlock()
	s.On, s.Why = c.off == "" && c.bound.Load(), c.off
	s.TurnedAway, s.Readers = c.turnedAway, len(c.readers)
	for name, u := range c.byName() {
		s.Clients = append(s.Clients, u.status(name))
	}
	slices.SortFunc(s.Clients, func(a, b status.Client) int { return strings.Compare(a.Name, b.Name) })
	return s
}
