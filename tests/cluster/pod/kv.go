package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/kv"
)

// A batch is the object of an order: the blocks NAME-0 to NAME-15 of a namespace, each of blockBytes.
const (
	blockBytes = 64 << 10
	batch      = 16
)

// engine is the pod's state of a namespace.
type engine struct {
	store  *kv.Store
	tokens []uint64       // of pins
	rest   []func() error // writes the rest of half
}

// kv acts as an engine on a batch, which file names: NAMESPACE/NAME. known is false for other orders.
func (s *server) kv(what, file string, a *answer) (known bool, err error) {
	order, known := strings.CutPrefix(what, "kv-")
	if !known {
		return false, nil
	}
	space, name := filepath.Dir(file), filepath.Base(file)
	e := s.engines[space]
	if e == nil {
		if e, err = openEngine(space); err != nil {
			return true, err
		}
		s.engines[space] = e
	}
	switch order {
	case "put":
		a.Blocks, err = e.put(name)
	case "get":
		a.Blocks, err = e.get(name)
	case "pin":
		a.Blocks, err = e.pin(name)
	case "unpin": // the last pins
		a.Blocks, err = count(e.store.Unpin(e.tokens, nil))
	case "half":
		err = e.half(space, name)
	case "rest": // of all halves
		for _, write := range e.rest {
			err = errors.Join(err, write())
		}
	case "loop":
		s.loop = again(e.pass(name))
	default:
		return false, nil
	}
	return true, err
}

// openEngine opens a namespace as far as the pod may.
func openEngine(space string) (*engine, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := kv.Options{Device: kv.HostDevice, BlockBytes: blockBytes, Create: true, Write: true, Mode: 0o660, Client: "pod"}
	store, err := kv.Open(ctx, root, space, o)
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EROFS) { // it may read, perhaps
		o.Create, o.Write = false, false
		if reads, readErr := kv.Open(ctx, root, space, o); readErr == nil {
			store, err = reads, nil
		}
	}
	return &engine{store: store}, err
}

func keysOf(name string) (keys [][]byte) {
	for i := range batch {
		keys = append(keys, fmt.Appendf(nil, "%s-%d", name, i))
	}
	return keys
}

// blocksOf gives a batch with memory of its own, which a put fills first.
func blocksOf(name string) (blocks []kv.Block) {
	for _, key := range keysOf(name) {
		blocks = append(blocks, kv.Block{Key: key, Parts: []kv.Memory{{Host: make([]byte, blockBytes)}}})
	}
	return blocks
}

// count waits for a request, and counts its blocks by outcome, and by the tiers between which they were moved.
func count(q *kv.Request, err error) (map[string]int64, error) {
	if err != nil {
		return nil, err
	}
	result, err := q.Result()
	blocks := map[string]int64{"memory": result.Moved.Memory / blockBytes, "disk": result.Moved.Disk / blockBytes}
	for _, o := range result.Outcomes {
		blocks[o.String()]++
	}
	return blocks, err
}

func (e *engine) put(name string) (map[string]int64, error) {
	blocks := blocksOf(name)
	for _, b := range blocks {
		fill(b.Parts[0].Host, string(b.Key), 0)
	}
	return count(e.store.Put(blocks, nil, nil))
}

// get compares every byte of the blocks that are there.
func (e *engine) get(name string) (map[string]int64, error) {
	blocks := blocksOf(name)
	q, err := e.store.Get(blocks, nil, nil)
	found, err := count(q, err)
	if err != nil {
		return nil, err
	}
	result, _ := q.Result() // it had no error
	for i, b := range blocks {
		if result.Outcomes[i] == kv.Done {
			if err := compare(string(b.Key), b.Parts[0].Host, 0, "a block"); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

func (e *engine) pin(name string) (map[string]int64, error) {
	q, err := e.store.Pin(keysOf(name), nil)
	found, err := count(q, err)
	if err == nil {
		result, _ := q.Result() // it had no error
		e.tokens = result.Tokens
	}
	return found, err
}

// half reserves the slots of a batch and writes half of each, as an engine has done that dies then, or that waits for its CPU.
func (e *engine) half(space, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := control.Dial(ctx, root, "pod") // it stays until the process dies
	if err != nil {
		return err
	}
	n, err := client.OpenKV(ctx, control.KVOpen{Name: space, BlockBytes: blockBytes, Flags: control.KVWrite})
	if err != nil {
		return err
	}
	var blocks []control.KVBlock
	for _, key := range keysOf(name) {
		blocks = append(blocks, control.KVBlock{Key: key, Length: blockBytes})
	}
	slots, err := n.Reserve(ctx, blocks)
	if err != nil {
		return err
	}
	for i, slot := range slots {
		if slot.Errno != 0 {
			return fmt.Errorf("reserve %s: %w", blocks[i].Key, slot.Errno)
		}
		content, at := make([]byte, blockBytes), int64(slot.Slot)*n.SlotBytes
		fill(content, string(blocks[i].Key), 0)
		if _, err := n.Files[slot.Tier].WriteAt(content[:blockBytes/2], at); err != nil {
			return err
		}
		e.rest = append(e.rest, func() error {
			_, err := n.Files[slot.Tier].WriteAt(content[blockBytes/2:], at+blockBytes/2)
			return err
		})
	}
	return nil
}

// pass stores a batch of its own, finds it and the one of this name, which somebody has stored, and removes its own. So slots go from
// pod to pod.
func (e *engine) pass(name string) func(did func(n int)) error {
	passes := 0
	return func(did func(n int)) error {
		passes++
		own := fmt.Sprint(name, "-pass-", passes)
		for _, step := range []struct {
			what string
			do   func() (map[string]int64, error)
		}{
			{"put " + own, func() (map[string]int64, error) { return e.put(own) }},
			{"get " + own, func() (map[string]int64, error) { return e.get(own) }},
			{"get " + name, func() (map[string]int64, error) { return e.get(name) }},
			{"remove " + own, func() (map[string]int64, error) { return count(e.store.Remove(keysOf(own), nil)) }},
		} {
			blocks, err := step.do()
			if err == nil && blocks["done"]+blocks["present"] != batch { // a commit whose answer was lost with its daemon
				err = fmt.Errorf("blocks: %v", blocks)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
			did(batch * blockBytes)
		}
		return nil
	}
}
