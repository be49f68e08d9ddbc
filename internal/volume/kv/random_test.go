package kv

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// randomEnv is how long TestRandomClients lasts, such as 10m, instead of a second.
const randomEnv = "HBMFS_TEST_KV_RANDOM"

// sound tells what is wrong with a tier. The lock is held.
func (t *tier) sound() error {
	states, linked := map[uint8]int64{}, map[uint32]bool{}
	bytesOf, listed := int64(0), int64(0)
	for n := range uint32(t.slots()) {
		s := t.at(n)
		states[s.state]++
		if s.state == gone && s.holds == 0 || s.state == free && s.holds > 0 {
			return fmt.Errorf("slot %d of state %d has %d holds", n, s.state, s.holds)
		}
		if s.state == ready || s.state == reserved {
			if found, ok := t.find(t.hash(t.key(n)), t.key(n)); !ok || found != n {
				return fmt.Errorf("key %q of slot %d is found at %d, %t", t.key(n), n, found, ok)
			}
			listed++
		}
		if s.state == ready {
			bytesOf += int64(s.length)
		}
	}
	for _, l := range []struct {
		*list
		state uint8
	}{{&t.free, free}, {&t.queue, ready}} {
		last, count := uint32(0), int64(0)
		for at := l.head; at != 0; at = t.at(at - 1).next {
			s := t.at(at - 1)
			if linked[at] || s.state != l.state || s.prev != last {
				return fmt.Errorf("slot %d of state %d is in the list of %d behind %d, twice: %t", at-1, s.state, l.state, s.prev, linked[at])
			}
			linked[at], last = true, at
			count++
		}
		if count != l.n || count != states[l.state] || l.tail != last {
			return fmt.Errorf("%d slots of state %d: %d in the list, which counts %d and ends at %d of %d", states[l.state], l.state, count, l.n, l.tail, last)
		}
	}
	if int64(t.table.used) != listed || bytesOf != t.bytes {
		return fmt.Errorf("the table has %d of %d slots, the tier %d of %d bytes", t.table.used, listed, t.bytes, bytesOf)
	}
	if t.hand != 0 && t.at(t.hand-1).state != ready {
		return fmt.Errorf("the hand is at slot %d of state %d", t.hand-1, t.at(t.hand-1).state)
	}
	return nil
}

// sound fails the test where the books of a volume do not agree with each other.
func (v *volume) sound() {
	v.t.Helper()
	for _, sp := range v.all() {
		sp.mu.Lock()
		for _, t := range sp.tiers {
			if err := t.sound(); err != nil {
				v.t.Errorf("%s of %s: %v", t.word(), sp.name, err)
			}
		}
		sp.mu.Unlock()
	}
}

// hostile does operations at random: on the keys of others, with tokens of others and twice, and in the middle of their operations.
type hostile struct {
	*volume
	random *rand.Rand
	tokens *tokens
	c      *client
	space  int
	keys   int
	honest bool // it does nothing with what others have
}

// tokens are those that clients were given, of all namespaces.
type tokens struct {
	sync.Mutex
	list []uint64
	ids  []uint64 // of owners
}

func (l *tokens) add(some ...uint64) {
	l.Lock()
	defer l.Unlock()
	if l.list = append(l.list, some...); len(l.list) > 256 {
		l.list = l.list[128:]
	}
}

func (l *tokens) some(r *rand.Rand, n int) (some []uint64) {
	l.Lock()
	defer l.Unlock()
	for range n {
		if len(l.list) > 0 {
			some = append(some, l.list[r.IntN(len(l.list))])
		}
	}
	return some
}

func (h *hostile) connect() {
	if h.c != nil {
		h.c.close()
	}
	h.space = h.random.IntN(3)
	m := control.KVOpen{Name: fmt.Sprint("model", h.space), BlockBytes: 4096 << h.space, Mode: 0o640, Flags: control.KVCreate | control.KVWrite}
	h.c = &client{Session: h.Session(me(), selfPidfd(h.t)), t: h.t}
	h.tokens.Lock()
	ids := h.tokens.ids
	h.tokens.Unlock()
	if h.random.IntN(2) == 0 && len(ids) > 0 {
		seen := []uint64{0, control.KVKeep}[h.random.IntN(2)]
		if h.honest {
			seen = control.KVKeep
		}
		if some := h.tokens.some(h.random, 1); len(some) > 0 && h.random.IntN(2) == 0 && !h.honest {
			seen = some[0]
		}
		_, _ = h.c.attach(&control.KVAttach{Client: ids[h.random.IntN(len(ids))], Seen: seen}) // it may have ended
	}
	h.c.must(h.c.openSpace(m))
	h.tokens.Lock()
	if h.tokens.ids = append(h.tokens.ids, h.c.owner.id); len(h.tokens.ids) > 16 {
		h.tokens.ids = h.tokens.ids[8:]
	}
	h.tokens.Unlock()
}

func (h *hostile) key() []byte { return fmt.Appendf(nil, "key-%d", h.random.IntN(h.keys)) }

func (h *hostile) step(ctx context.Context) {
	c, r := h.c, h.random
	n := 1 + r.IntN(20)
	switch r.IntN(12) {
	case 0, 1, 2:
		blocks := make([]control.KVBlock, n)
		for i := range blocks {
			blocks[i] = control.KVBlock{Key: h.key(), Length: uint32(100 + r.IntN(3997))}
		}
		var stored []control.KVStored
		for i, s := range c.reserve(c.space, blocks) {
			if s.Errno != 0 {
				continue
			}
			b := blockOf(string(blocks[i].Key), int(s.Length))
			if _, err := c.files[s.Tier].WriteAt(b, int64(s.Slot)*c.space.meta.Slot); err != nil {
				h.t.Error(err)
			}
			h.tokens.add(s.Token)
			if r.IntN(10) > 0 {
				stored = append(stored, control.KVStored{Token: s.Token, CRC: sumOf(b), Flags: control.KVHasCRC})
			}
		}
		if r.IntN(4) == 0 && !h.honest {
			for _, token := range h.tokens.some(r, 3) {
				stored = append(stored, control.KVStored{Token: token})
			}
		}
		c.commit(c.space, stored)
	case 3, 4, 5, 6:
		keys := make([][]byte, n)
		for i := range keys {
			keys[i] = h.key()
		}
		var mine []uint64
		for i, s := range c.lookup(c.space, keys, true) {
			if s.Errno != 0 {
				continue
			}
			b := make([]byte, s.Length)
			_, err := c.files[s.Tier].ReadAt(b, int64(s.Slot)*c.space.meta.Slot)
			good := !h.honest || err == nil && bytes.Equal(b, blockOf(string(keys[i]), len(b)))
			if d := c.drop(c.space, []uint64{s.Token}, false); d[0].Errno == 0 && !good && s.Flags&control.KVHasCRC != 0 {
				h.t.Errorf("key %q: %v, %.40q", keys[i], err, b)
			}
			if again := c.lookup(c.space, keys[i:i+1], true)[0]; again.Errno == 0 {
				mine = append(mine, again.Token)
			}
		}
		h.tokens.add(mine...)
		if r.IntN(3) > 0 {
			c.drop(c.space, mine, r.IntN(8) == 0)
		}
	case 7:
		c.drop(c.space, h.tokens.some(r, n), r.IntN(4) == 0)
	case 8:
		keys := make([][]byte, n)
		for i := range keys {
			keys[i] = h.key()
		}
		c.remove(c.space, keys)
	case 9:
		h.connect()
	case 10:
		if r.IntN(20) == 0 {
			c.space.clear()
		} else {
			c.space.verify(ctx, uint64(r.IntN(1000)))
		}
	case 11:
		if r.IntN(4) == 0 && c.owner != nil {
			h.end(c.owner) // as if the process had ended
			h.connect()
		}
	}
}

// TestRandomClients has clients do what they may and may not, all at once. The books agree at any time. Then nothing is held, and a kill leaves no record
// that makes no sense. Honest clients find only their own bytes.
func TestRandomClients(t *testing.T) {
	lasts := time.Second
	if text := os.Getenv(randomEnv); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := blackbox.Seed(t)
	for k := range 4 {
		memory, honest := int64(k%2)<<20, k < 2
		dir := t.TempDir()
		v := open(t, dir, 4<<20, memory)
		shared := &tokens{}
		over := time.Now().Add(lasts / 4)
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				h := &hostile{volume: v, random: rand.New(rand.NewPCG(seed, uint64(i))), tokens: shared, keys: 2000, honest: honest}
				if honest {
					h.tokens = &tokens{}
				}
				h.connect()
				for time.Now().Before(over) && !t.Failed() {
					h.step(t.Context())
				}
				h.c.close()
			})
		}
		for time.Now().Before(over) && !t.Failed() {
			v.sound()
			time.Sleep(20 * time.Millisecond)
		}
		all.Wait()
		v.mu.Lock()
		var owners []*owner
		for _, o := range v.owners {
			owners = append(owners, o)
		}
		v.mu.Unlock()
		for _, o := range owners {
			v.end(o)
		}
		until(t, "something is held", func() bool {
			var left int64
			for _, i := range v.Namespaces() {
				left += int64(i.Counts.Pins + i.Counts.Reservations)
			}
			return left == 0 && v.held.Booked() == 0 && v.count.Booked() == 0
		})
		v.sound()
		for _, sp := range v.all() {
			sp.intact() // a client that lied may have written behind the end
		}
		v.crash()
		w := open(t, dir, 4<<20, memory)
		w.sound()
		for _, sp := range w.all() {
			sp.clear()
			sp.rest()
			if i := sp.info(); i.Counts.Disk.Allocated != 0 || i.Counts.Dropped != 0 || i.Broken != 0 {
				t.Errorf("%+v", i)
			}
		}
		if n := w.Notes(); len(n) > 0 {
			t.Error(n)
		}
		w.stop()
	}
}
