package kv_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/observe/status"
)

// childVerb is the environment variable that makes the test binary a client of its own. Its value is what the client is told: see child.
const childVerb = "HBMFS_TEST_KV_CHILD"

// child is a client in a process of its own, that does random operations and knows what it must find.
type child struct {
	Root    string
	Journal string // of what it has stored and removed, for the process after it
	Number  int
	Seed    uint64
	Keys    int  // of its own; as many are everybody's
	Keeps   bool // nothing is evicted: what it has stored is there until it removes it
	Block   int64

	*engine
	r       *rand.Rand
	journal *os.File
	there   map[string]bool // keys of its own that are stored; without a key it is not known whether it is
	pins    []held
	half    []uint64
	ops     uint64
	count   *os.File // of its operations
}

// held is a pin that is released later.
type held struct {
	key    string
	token  uint64
	tier   uint32
	slot   uint64
	length uint32
}

// runChild is a client in a process of its own.
func runChild(told string) int {
	if rest, ok := strings.CutPrefix(told, "open "); ok {
		fmt.Println(strings.Join(tryOpen(rest), " "))
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test closes it, or kills this process
		return 0
	}
	c := &child{}
	_, err := fmt.Sscanf(told, "%s %s %d %d %d %t %d", &c.Root, &c.Journal, &c.Number, &c.Seed, &c.Keys, &c.Keeps, &c.Block)
	if err == nil {
		err = c.run(context.Background())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "client %d, seed %d: %v\n", c.Number, c.Seed, err)
		return 1
	}
	return 0
}

func (c *child) run(ctx context.Context) (err error) {
	c.r = rand.New(rand.NewPCG(c.Seed, uint64(c.Number)))
	if err := c.replay(); err != nil {
		return err
	}
	if c.journal, err = os.OpenFile(c.Journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	if c.count, err = os.OpenFile(c.Journal+".operations", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	so := make([]byte, 8)
	_, _ = c.count.ReadAt(so, 0) // the first process finds none
	c.ops = binary.LittleEndian.Uint64(so)
	if err := c.dial(ctx, 0, 0); err != nil {
		return err
	}
	over := make(chan struct{})
	go func() { // ends with the process
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test closes it
		close(over)
	}()
	for {
		select {
		case <-over:
			return nil
		default:
		}
		if err := c.step(ctx); err != nil {
			if !lost(err) {
				return err
			}
			client, seen := c.Client, c.client.Seen()
			_ = c.close() // its daemon is gone
			if err := c.dial(ctx, client, seen); err != nil {
				return err
			}
		}
	}
}

// lost tells whether a daemon has gone.
func lost(err error) bool {
	return errors.Is(err, control.ErrStale) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ESHUTDOWN)
}

// dial connects, and goes on with what this process holds.
func (c *child) dial(ctx context.Context, before, seen uint64) error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := control.Dial(ctx, c.Root, "oracle")
		if err == nil && before != 0 {
			if attachErr := conn.AttachKV(ctx, before, seen); errors.Is(attachErr, syscall.ENOENT) { // it held nothing
				before, c.pins, c.half = 0, nil, nil
			} else if attachErr != nil {
				err = errors.Join(attachErr, conn.Close())
			}
		}
		if err == nil {
			var n *control.Namespace
			if n, err = conn.OpenKV(ctx, control.KVOpen{Name: "model", BlockBytes: c.Block, Mode: 0o600, Flags: control.KVCreate | control.KVWrite}); err == nil {
				known := c.engine
				c.engine = newEngine(conn, n)
				if before != 0 {
					c.tokens = known.tokens
					err = c.settle(ctx)
				}
				if err == nil || !lost(err) {
					return err
				}
				before, seen = c.Client, conn.Seen()
				_ = c.close() // its daemon is gone, too
			}
			_ = conn.Close() // it is of no use
		}
		if time.Now().After(end) {
			return fmt.Errorf("connect: %w", err)
		}
	}
}

// settle gives back what operations held that ended with their connection. The daemon must know of nothing more than this client does then: what answers
// gave that did not come is given back.
func (c *child) settle(ctx context.Context) error {
	kept := map[uint64]bool{}
	for _, token := range c.half { // one that was reserved before the attachment and after it is there twice
		kept[token] = true
	}
	for _, h := range c.pins {
		kept[h.token] = true
	}
	var over []uint64
	for token := range c.tokens {
		if !kept[token] {
			over = append(over, token)
		}
	}
	if _, err := c.Release(ctx, 0, over...); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(c.Root, ".hbmfs", "status"))
	s := status.Status{}
	if err != nil || json.Unmarshal(text, &s) != nil || s.KV == nil {
		return nil // its daemon is being replaced: the next one is asked
	}
	holds := 0
	for _, h := range s.KV.Holders {
		if h.PID == os.Getpid() {
			holds = h.Holds
		}
	}
	if holds != len(kept) {
		return fmt.Errorf("%d pins and reservations are held after an attachment, and %d are known", holds, len(kept))
	}
	return nil
}

// replay reads what the process before has done. A line is + or - and a key, with ? before what had not been answered.
func (c *child) replay() error {
	c.there = map[string]bool{}
	for i := range c.Keys {
		c.there[c.own(i)] = false
	}
	f, err := os.Open(c.Journal)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	for lines := bufio.NewScanner(f); lines.Scan(); {
		for _, key := range strings.Fields(lines.Text()[1:]) {
			switch lines.Text()[0] {
			case '?':
				delete(c.there, key)
			case '+', '-':
				c.there[key] = lines.Text()[0] == '+'
			}
		}
	}
	return nil
}

// note writes down what is about to be done, or was.
func (c *child) note(sign string, keys ...string) error {
	for _, k := range keys {
		if sign == "?" {
			delete(c.there, k)
		} else {
			c.there[k] = sign == "+"
		}
	}
	_, err := c.journal.WriteString(sign + strings.Join(keys, " ") + "\n")
	return err
}

func (c *child) own(i int) string { return fmt.Sprintf("own-%d-%d", c.Number, i) }

// draw chooses different keys of its own, or everybody's.
func (c *child) draw(own bool) (keys []string) {
	for range 1 + c.r.IntN(12) {
		k := fmt.Sprintf("all-%d", c.r.IntN(c.Keys))
		if own {
			k = c.own(c.r.IntN(c.Keys))
		}
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// step does one operation.
func (c *child) step(ctx context.Context) error {
	own := c.r.IntN(2) == 0
	keys := c.draw(own)
	c.ops += uint64(len(keys))
	if _, err := c.count.WriteAt(binary.LittleEndian.AppendUint64(nil, c.ops), 0); err != nil {
		return err
	}
	switch c.r.IntN(12) {
	case 0, 1, 2, 3:
		return c.store(ctx, keys, own)
	case 4, 5, 6, 7:
		return c.look(ctx, keys, own)
	case 8:
		return c.take(ctx, keys, own)
	case 9:
		return c.pin(ctx, keys)
	case 10:
		return c.unpin(ctx)
	}
	return c.halves(ctx)
}

func (c *child) store(ctx context.Context, keys []string, own bool) error {
	if own {
		if err := c.note("?", keys...); err != nil {
			return err
		}
	}
	stored, _, err := c.put(ctx, keys...)
	if err == nil && own && len(stored) > 0 {
		err = c.note("+", stored...)
	}
	return err
}

func (c *child) look(ctx context.Context, keys []string, own bool) error {
	found, err := c.get(ctx, keys...)
	if err != nil || !own {
		return err
	}
	for _, k := range keys {
		is := slices.Contains(found, k)
		switch there, known := c.there[k]; {
		case !known:
		case is && !there:
			return fmt.Errorf("%s is found, and was removed or never stored", k)
		case !is && there && c.Keeps:
			return fmt.Errorf("%s is not found, and was stored", k)
		}
	}
	return nil
}

func (c *child) take(ctx context.Context, keys []string, own bool) error {
	if own {
		if err := c.note("?", keys...); err != nil {
			return err
		}
	}
	var raw [][]byte
	for _, k := range keys {
		raw = append(raw, []byte(k))
	}
	done, err := c.Remove(ctx, raw...)
	if err != nil || !own {
		return err
	}
	var gone []string
	for i, d := range done {
		if d.Errno != syscall.EIO { // of a disk that is ill
			gone = append(gone, keys[i])
		}
	}
	return c.note("-", gone...)
}

// pin holds blocks for a while.
func (c *child) pin(ctx context.Context, keys []string) error {
	if len(c.pins) > 40 {
		return c.unpin(ctx)
	}
	var raw [][]byte
	for _, k := range keys {
		raw = append(raw, []byte(k))
	}
	slots, err := c.Lookup(ctx, raw, true)
	for i, s := range slots {
		if s.Errno == 0 {
			c.pins = append(c.pins, held{keys[i], s.Token, s.Tier, s.Slot, s.Length})
		}
	}
	return err
}

// unpin reads what was pinned long ago: whatever was removed or evicted since, the bytes are those of the key.
func (c *child) unpin(ctx context.Context) error {
	pins := c.pins
	c.pins = nil
	for _, h := range pins {
		b := make([]byte, h.length)
		if _, err := c.Files[h.tier].ReadAt(b, int64(h.slot)*c.SlotBytes); err != nil {
			return fmt.Errorf("read what is pinned: %w", err)
		}
		done, err := c.Release(ctx, 0, h.token)
		if err != nil {
			return err
		}
		if done[0].Errno != 0 {
			return fmt.Errorf("the pin of %s is lost: %w", h.key, done[0].Errno)
		}
		if want := blockOf(h.key, lengthOf(h.key, int(c.BlockBytes))); string(want) != string(b) {
			return fmt.Errorf("%w in the pinned block %s", errWrong, h.key)
		}
	}
	return nil
}

// halves reserves slots, fills them with nonsense, and gives them up, or keeps them for a while: nobody may ever find their keys.
func (c *child) halves(ctx context.Context) error {
	if len(c.half) > 20 {
		tokens := c.half
		c.half = nil
		_, err := c.Release(ctx, 0, tokens...)
		return err
	}
	key := []byte(fmt.Sprintf("half-%d-%d", c.Number, c.r.IntN(1000)))
	slots, err := c.Reserve(ctx, []control.KVBlock{{Key: key, Length: uint32(c.BlockBytes)}})
	if err != nil {
		return err
	}
	if s := slots[0]; s.Errno == 0 {
		c.half = append(c.half, s.Token)
		if _, err := c.Files[s.Tier].WriteAt(make([]byte, c.BlockBytes), int64(s.Slot)*c.SlotBytes); err != nil {
			return err
		}
	} else if s.Errno == syscall.EEXIST {
		return fmt.Errorf("%s is there, and was never committed", key)
	}
	found, err := c.Lookup(ctx, [][]byte{key}, false)
	if err == nil && found[0].Errno == 0 {
		return fmt.Errorf("%s is found, and was never committed", key)
	}
	return err
}
