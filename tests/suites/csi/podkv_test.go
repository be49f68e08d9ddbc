package csi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"path"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// blockBytes is the size of the blocks that pods store.
const blockBytes = 64 << 10

// engine is what a pod's program has of a KV volume.
type engine struct {
	client uint64 // by which the daemon knows the process
	seen   uint64 // the highest token that it has been given
	conn   *control.Client
	open   map[string]*control.Namespace // by name, and " to read"
	pins   map[string]uint64             // by the block's name
}

// block is a block of a KV volume: a file's name is NAMESPACE/KEY, and its content the block's.
func block(name string) file { return file{name, 1 + uint64(len(name)), blockBytes - 17} }

// kv does what an engine does in a KV volume.
func (p *program) kv(o order, a *answer) (known bool, err error) {
	space, key := path.Split(o.File.Name)
	space = path.Clean(space)
	do := map[string]func(context.Context, *control.Namespace) error{
		"put":   func(ctx context.Context, n *control.Namespace) error { return p.put(ctx, n, key, o.File) },
		"get":   func(ctx context.Context, n *control.Namespace) error { return p.get(ctx, n, key, o.File, a) },
		"fetch": func(ctx context.Context, n *control.Namespace) error { return p.get(ctx, n, key, o.File, a) },
		"pin":   func(ctx context.Context, n *control.Namespace) error { return p.pin(ctx, n, key) },
		"unpin": func(ctx context.Context, n *control.Namespace) error { return p.unpin(ctx, n, key) },
		"reserve": func(ctx context.Context, n *control.Namespace) error {
			_, err := reserve(ctx, n, key, o.File.Size)
			return err
		},
	}[o.Do]
	if do == nil {
		return false, nil
	}
	ctx := context.Background()
	n, err := p.engine.namespace(ctx, space, o.Do != "fetch")
	if err == nil {
		err = do(ctx, n)
	}
	var said *control.Refusal
	var wrong *wrongError
	if err != nil && !errors.As(err, &said) && !errors.As(err, &wrong) {
		p.engine.disconnect() // the next order connects again
	}
	return true, err
}

// namespace opens a namespace, over a connection that goes on with what the process holds.
func (e *engine) namespace(ctx context.Context, name string, write bool) (n *control.Namespace, err error) {
	known := name
	m := control.KVOpen{Name: name, BlockBytes: blockBytes, Mode: 0o640}
	if write {
		m.Flags = control.KVCreate | control.KVWrite
	} else {
		known += " to read"
	}
	if e.open[known] != nil {
		return e.open[known], nil
	}
	if e.conn == nil {
		if e.conn, err = control.Dial(ctx, "/data", "pod"); err != nil {
			return nil, err
		}
		e.open = map[string]*control.Namespace{}
		if e.client != 0 {
			if err := e.conn.AttachKV(ctx, e.client, e.seen); err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, err
			}
		}
	}
	if n, err = e.conn.OpenKV(ctx, m); err != nil {
		return nil, err
	}
	e.client, e.open[known] = n.Client, n
	return n, nil
}

func (e *engine) disconnect() {
	if e.conn == nil {
		return
	}
	for _, n := range e.open {
		_ = n.Close() // its slots stay
	}
	_ = e.conn.Close() // it is broken
	e.seen = e.conn.Seen()
	e.conn, e.open = nil, nil
}

func reserve(ctx context.Context, n *control.Namespace, key string, length int) (control.KVSlot, error) {
	slots, err := n.Reserve(ctx, []control.KVBlock{{Key: []byte(key), Length: uint32(length)}})
	if err != nil {
		return control.KVSlot{}, err
	}
	if slots[0].Errno != 0 {
		return slots[0], fmt.Errorf("reserve %s: %w", key, slots[0].Errno)
	}
	return slots[0], nil
}

// put stores a block.
func (p *program) put(ctx context.Context, n *control.Namespace, key string, f file) error {
	slot, err := reserve(ctx, n, key, f.Size)
	if err != nil {
		return err
	}
	b := p.content(f)
	if _, err := n.Files[slot.Tier].WriteAt(b, int64(slot.Slot)*n.SlotBytes); err != nil {
		return err
	}
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	done, err := n.Commit(ctx, []control.KVStored{{Token: slot.Token, CRC: sum, Flags: control.KVHasCRC}})
	if err == nil && done[0].Errno != 0 {
		err = done[0].Errno
	}
	return err
}

// get reads a block, and says in which tier it is.
func (p *program) get(ctx context.Context, n *control.Namespace, key string, f file, a *answer) error {
	slots, err := n.Lookup(ctx, [][]byte{[]byte(key)}, true)
	if err != nil {
		return err
	}
	s := slots[0]
	if s.Errno != 0 {
		return fmt.Errorf("look %s up: %w", key, s.Errno)
	}
	got := make([]byte, s.Length)
	if _, err := n.Files[s.Tier].ReadAt(got, int64(s.Slot)*n.SlotBytes); err != nil {
		return err
	}
	done, err := n.Release(ctx, 0, s.Token)
	if err == nil && done[0].Errno != 0 {
		err = done[0].Errno
	}
	if err == nil && !bytes.Equal(got, p.content(f)) {
		err = &wrongError{fmt.Sprintf("block %s has %d bytes that are not its own", key, len(got))}
	}
	a.Text = "memory"
	if n.Tiers[s.Tier].Kind == control.KVDisk {
		a.Text = "disk"
	}
	return err
}

// pin keeps a block where it is.
func (p *program) pin(ctx context.Context, n *control.Namespace, key string) error {
	slots, err := n.Lookup(ctx, [][]byte{[]byte(key)}, true)
	if err != nil || slots[0].Errno != 0 {
		return errors.Join(err, slots[0].Errno)
	}
	p.engine.pins[key] = slots[0].Token
	return nil
}

// unpin gives a pin up that must have held all the while.
func (p *program) unpin(ctx context.Context, n *control.Namespace, key string) error {
	done, err := n.Release(ctx, 0, p.engine.pins[key])
	if err == nil && done[0].Errno != 0 {
		err = fmt.Errorf("the pin of %s is over: %w", key, done[0].Errno)
	}
	return err
}
