package control

import (
	"crypto/rand"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/layout"
)

// Limits of tickets. One names at most [control.MaxObjects] objects, so all of them take a few megabytes.
const (
	ticketLife    = 10 * time.Second
	ticketsPerUID = 256
	ticketsInAll  = 4096
)

// tickets are those that are issued and not yet redeemed. Where there are too many, the oldest of the user with the most
// goes: no user can push out another's.
type tickets struct {
	now func() time.Time

	mu     sync.Mutex // guards the fields below
	byID   map[control.Ticket]*ticket
	byUID  map[uint32][]*ticket // the oldest first; redeemed ones may still be there
	swept  time.Time
	issued int64
}

type ticket struct {
	id      control.Ticket
	uid     uint32
	expires time.Time
	objects map[uint64]*layout.Object
}

func newTickets() *tickets {
	return &tickets{now: time.Now, byID: map[control.Ticket]*ticket{}, byUID: map[uint32][]*ticket{}}
}

// issue makes a ticket with which uid may redeem objects.
func (t *tickets) issue(uid uint32, objects map[uint64]*layout.Object) control.Ticket {
	k := &ticket{uid: uid, objects: objects}
	_, _ = rand.Read(k.id[:]) // never fails: crypto/rand ends the program first
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	k.expires = now.Add(ticketLife)
	if now.Sub(t.swept) > ticketLife || len(t.byID) >= ticketsInAll {
		t.swept = now
		for uid := range t.byUID {
			t.prune(uid, now)
		}
	}
	t.prune(uid, now)
	if len(t.byUID[uid]) >= ticketsPerUID {
		t.dropOldest(uid)
	}
	if len(t.byID) >= ticketsInAll {
		t.dropOldest(t.greediest())
	}
	t.byID[k.id] = k
	t.byUID[uid] = append(t.byUID[uid], k)
	t.issued++
	return k.id
}

// prune forgets redeemed and expired tickets at the front of a user's.
func (t *tickets) prune(uid uint32, now time.Time) {
	for q := t.byUID[uid]; len(q) > 0; q = t.byUID[uid] {
		if t.byID[q[0].id] != nil && now.Before(q[0].expires) {
			return
		}
		t.dropOldest(uid)
	}
	delete(t.byUID, uid)
}

func (t *tickets) dropOldest(uid uint32) {
	q := t.byUID[uid]
	delete(t.byID, q[0].id)
	q[0] = nil
	t.byUID[uid] = q[1:]
}

func (t *tickets) greediest() (uid uint32) {
	most := -1
	for u, q := range t.byUID {
		if len(q) > most {
			uid, most = u, len(q)
		}
	}
	return uid
}

// redeem uses a ticket up, checks that it is uid's, and returns the objects that have these numbers.
func (t *tickets) redeem(id control.Ticket, uid uint32, objects []uint64) (of []*layout.Object, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.byID[id]
	switch {
	case k == nil || !t.now().Before(k.expires):
		delete(t.byID, id)
		return nil, &control.Refusal{Errno: syscall.ESTALE, Text: fmt.Sprintf("the ticket is not known: it was used, is older than %v, or comes from before a restart: ask for the extents again", ticketLife)}
	case k.uid != uid:
		return nil, &control.Refusal{Errno: syscall.EACCES, Text: fmt.Sprintf("the ticket was given to user %d: redeem it as the user who asked for the extents", k.uid)}
	}
	delete(t.byID, id)
	for _, o := range objects {
		if k.objects[o] == nil {
			return nil, &control.Refusal{Errno: syscall.EACCES, Text: fmt.Sprintf("the ticket does not name object %d", o)}
		}
		of = append(of, k.objects[o])
	}
	return of, nil
}

// counts returns how many tickets can be redeemed, and how many were ever issued.
func (t *tickets) counts() (live int, issued int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID), t.issued
}
