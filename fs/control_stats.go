package fs

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/control"
)

// usage is what the clients of one name did.
type usage struct {
	connections atomic.Int64
	bytes       [control.Paths]atomic.Int64
	reads       [control.Paths]atomic.Int64
}

func (u *usage) add(moved []control.Moved) {
	for _, m := range moved {
		u.bytes[m.Path].Add(m.Bytes)
		u.reads[m.Path].Add(m.Reads)
	}
}

// usageNames bounds the names that are told apart; a client may call itself anything.
const usageNames = 64

// otherClients stands for the names that came when there were enough.
const otherClients = "(others)"

func (c *channel) usageOf(name string) *usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name == "" {
		name = "(unnamed)"
	}
	if c.usages[name] == nil && len(c.usages) >= usageNames {
		name = otherClients
	}
	u := c.usages[name]
	if u == nil {
		u = &usage{}
		c.usages[name] = u
	}
	return u
}

// admit counts a connection in, unless there are enough.
func (c *channel) admit(uid uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[uid] >= sessionsPerUID || c.connections >= sessionsInAll {
		c.turnedAway++
		return false
	}
	c.sessions[uid]++
	c.connections++
	return true
}

func (c *channel) leave(uid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections--
	if c.sessions[uid]--; c.sessions[uid] == 0 {
		delete(c.sessions, uid)
	}
}

func (c *channel) disable(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = why
}

// ControlStatus is the control channel in the status.
type ControlStatus struct {
	On              bool           `json:"on"` // the socket: ioctls are answered without it
	Why             string         `json:"why,omitempty"`
	ReadOnly        bool           `json:"read_only_descriptors"` // not even root opens a given descriptor for writing
	WhyNot          string         `json:"read_only_why_not,omitempty"`
	Connections     int            `json:"connections"`
	TurnedAway      int64          `json:"turned_away"` // connections over the limits
	Refused         int64          `json:"refused"`     // requests
	Leases          int64          `json:"leases"`
	Tickets         int            `json:"tickets"`
	Issued          int64          `json:"tickets_issued"`
	PrefetchedBytes int64          `json:"prefetched_bytes"`
	Clients         []ClientStatus `json:"clients"`
}

// ClientStatus is what the clients of one name reported.
type ClientStatus struct {
	Name        string           `json:"name"`
	Connections int64            `json:"connections"`
	Bytes       map[string]int64 `json:"bytes"` // by path
	Reads       map[string]int64 `json:"reads"`
}

// writeClients writes what readers reported, for Prometheus.
func writeClients(b *bytes.Buffer, clients []ClientStatus) {
	for _, metric := range []struct {
		name, help string
		of         func(*ClientStatus) map[string]int64
	}{
		{"hbmfs_client_bytes_total", "Bytes that readers moved past FUSE, as they reported.", func(c *ClientStatus) map[string]int64 { return c.Bytes }},
		{"hbmfs_client_reads_total", "Reads of readers past FUSE, as they reported.", func(c *ClientStatus) map[string]int64 { return c.Reads }},
	} {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s counter\n", metric.name, metric.help, metric.name)
		for i := range clients {
			of := metric.of(&clients[i])
			for _, path := range slices.Sorted(maps.Keys(of)) {
				fmt.Fprintf(b, "%s{client=%q,path=%q} %d\n", metric.name, clients[i].Name, path, of[path])
			}
		}
	}
}

func (m *Mount) controlStatus() ControlStatus {
	c := m.control
	s := ControlStatus{Leases: c.leases.Load(), Refused: c.refused.Load(), PrefetchedBytes: c.prefetch.bytes.Load(), Clients: []ClientStatus{}}
	s.Tickets, s.Issued = c.tickets.counts()
	if err := m.readOnlyMount(); err != nil {
		s.WhyNot = err.Error()
	}
	s.ReadOnly = s.WhyNot == ""
	c.mu.Lock()
	defer c.mu.Unlock()
	s.On, s.Why = c.off == "" && c.bound.Load(), c.off
	s.Connections, s.TurnedAway = c.connections, c.turnedAway
	for name, u := range c.usages {
		client := ClientStatus{name, u.connections.Load(), map[string]int64{}, map[string]int64{}}
		for p := range control.Paths {
			if n := u.reads[p].Load(); n > 0 {
				client.Bytes[p.String()], client.Reads[p.String()] = u.bytes[p].Load(), n
			}
		}
		s.Clients = append(s.Clients, client)
	}
	slices.SortFunc(s.Clients, func(a, b ClientStatus) int { return strings.Compare(a.Name, b.Name) })
	return s
}
