package control

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Namespace is a namespace of a KV volume that a connection has open. It is safe for concurrent use; requests take turns.
//
//	c, err := control.Dial(ctx, "/mnt/kv", "my-engine")
//	n, err := c.OpenKV(ctx, control.KVOpen{Name: "llama-8b-fp8", BlockBytes: 2 << 20, Mode: 0o640, Flags: control.KVCreate | control.KVWrite})
//	slots, err := n.Reserve(ctx, []control.KVBlock{{Key: key, Length: 2 << 20}})
//	n.Tiers[slots[0].Tier].File.WriteAt(block, int64(slots[0].Slot)*n.SlotBytes)  // where Errno is 0
//	done, err := n.Commit(ctx, []control.KVStored{{Token: slots[0].Token, CRC: sum, Flags: control.KVHasCRC}})  // CRC-32C of block
//
// A block that was pinned and read is good once its release is answered without an error. ENOENT says that the pin ended before, and the slot may
// have got other bytes meanwhile.
type Namespace struct {
	KVSpace
	Files []*os.File // of the tiers, in their order; Close closes them
	c     *Client
}

// ErrNoKV says that a mount keeps no blocks.
var ErrNoKV = errors.New("the mount is no KV volume: hbmfs kv mount makes one")

// OpenKV opens a namespace. ENOENT: there is none, and [KVCreate] is not set; EINVAL: it has blocks of another size; EACCES: its mode keeps this user
// out; EROFS: this process has the volume mounted read-only. [ErrNoKV]: it is no KV volume.
func (c *Client) OpenKV(ctx context.Context, m KVOpen) (*Namespace, error) {
	if c.welcome.Flags&WelcomeKV == 0 {
		return nil, fmt.Errorf("open namespace %q: %w", m.Name, ErrNoKV)
	}
	a, err := c.ask(ctx, TypeKVOpen, TypeKVSpace, m.AppendTo)
	n := &Namespace{c: c}
	if err == nil {
		n.KVSpace, err = ParseKVSpace(a.payload)
	}
	switch {
	case err != nil:
	case a.truncated:
		err = ErrTooManyFiles
	case len(a.fds) != len(n.Tiers):
		err = errMalformed
	}
	if err != nil {
		CloseAll(a.fds)
		return nil, fmt.Errorf("open namespace %q: %w", m.Name, err)
	}
	for _, t := range n.Tiers {
		n.Files = append(n.Files, nil)
		for i := range len(n.Files) - 1 {
			if n.Tiers[i].FD == t.FD {
				err = errMalformed
			}
		}
	}
	if err != nil {
		CloseAll(a.fds)
		return nil, fmt.Errorf("open namespace %q: %w", m.Name, err)
	}
	for i, t := range n.Tiers {
		n.Files[i] = os.NewFile(uintptr(a.fds[t.FD]), m.Name)
	}
	return n, nil
}

// Close closes the files. The pins and reservations of the process stay.
func (n *Namespace) Close() error {
	var errs []error
	for _, f := range n.Files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Lookup tells where the blocks of keys lie. pin: those that are found stay there until they are released. With an error, the blocks that
// it gives were pinned nevertheless. If an answer did not come, [Client.AttachKV] of the next connection gives its pins back.
func (n *Namespace) Lookup(ctx context.Context, keys [][]byte, pin bool) ([]KVSlot, error) {
	m := KVKeys{Space: n.Space}
	if pin {
		m.Flags = KVPin
	}
	return inFrames(keys, keySize, func(part [][]byte) ([]KVSlot, error) {
		m.Keys = part
		return n.c.askSlots(ctx, "look up keys", TypeKVLookup, len(part), m.AppendTo)
	})
}

// Reserve gives slots for blocks that are going to be stored. Of errors, see [Namespace.Lookup].
func (n *Namespace) Reserve(ctx context.Context, blocks []KVBlock) ([]KVSlot, error) {
	m := KVReserve{Space: n.Space}
	return inFrames(blocks, func(b KVBlock) int { return 8 + len(b.Key) }, func(part []KVBlock) ([]KVSlot, error) {
		m.Blocks = part
		return n.c.askSlots(ctx, "reserve slots", TypeKVReserve, len(part), m.AppendTo)
	})
}

// Commit has blocks found from now on, whose bytes are in their slots.
func (n *Namespace) Commit(ctx context.Context, stored []KVStored) ([]KVDone, error) {
	m := KVCommit{Space: n.Space}
	return inFrames(stored, func(KVStored) int { return kvCommitSize }, func(part []KVStored) ([]KVDone, error) {
		m.Stored = part
		return kvAsk(ctx, n.c, "commit blocks", TypeKVCommit, TypeKVDone, len(part), m.AppendTo, ParseKVDone)
	})
}

// Release ends pins, and gives reservations up. flags: [KVSuspect] or 0.
func (n *Namespace) Release(ctx context.Context, flags uint32, tokens ...uint64) ([]KVDone, error) {
	m := KVRelease{Space: n.Space, Flags: flags}
	return inFrames(tokens, func(uint64) int { return 8 }, func(part []uint64) ([]KVDone, error) {
		m.Tokens = part
		return kvAsk(ctx, n.c, "release blocks", TypeKVRelease, TypeKVDone, len(part), m.AppendTo, ParseKVDone)
	})
}

// Remove removes blocks. Those that somebody holds are found no more, and go when the last pin goes.
func (n *Namespace) Remove(ctx context.Context, keys ...[]byte) ([]KVDone, error) {
	m := KVKeys{Space: n.Space}
	return inFrames(keys, keySize, func(part [][]byte) ([]KVDone, error) {
		m.Keys = part
		return kvAsk(ctx, n.c, "remove blocks", TypeKVRemove, TypeKVDone, len(part), m.AppendTo, ParseKVDone)
	})
}

// Clear removes all blocks.
func (n *Namespace) Clear(ctx context.Context) error {
	m := KVKeys{Space: n.Space, Flags: KVAll}
	_, err := kvAsk(ctx, n.c, "remove all blocks", TypeKVRemove, TypeKVDone, 0, m.AppendTo, ParseKVDone)
	return err
}

// Verify has the daemon compare some blocks with their checksums: from a cursor on, which is 0 at first and in the last answer.
func (n *Namespace) Verify(ctx context.Context, cursor uint64) (KVVerified, error) {
	m := KVVerify{n.Space, cursor}
	a, err := n.c.ask(ctx, TypeKVVerify, TypeKVVerified, m.AppendTo)
	if err != nil {
		return KVVerified{}, fmt.Errorf("verify blocks: %w", err)
	}
	return ParseKVVerified(a.payload)
}

// Seen is the highest token that came, also on the connections that this one goes on with.
func (c *Client) Seen() uint64 { return c.tokens.Load() }

// AttachKV goes on with the pins and reservations of an earlier connection of this process: client is the number that its KV_SPACE had, seen its
// [Client.Seen]. Later ones of the daemon are given back, and that connection is given nothing more. ENOENT: the daemon does not know it.
func (c *Client) AttachKV(ctx context.Context, client, seen uint64) error {
	m := KVAttach{client, seen}
	if seen != KVKeep {
		c.sawToken(seen)
	}
	if _, err := c.ask(ctx, TypeKVAttach, TypeDone, m.AppendTo); err != nil {
		return fmt.Errorf("go on with the pins of an earlier connection: %w", err)
	}
	return nil
}

func (c *Client) sawToken(token uint64) {
	for was := c.tokens.Load(); was < token && !c.tokens.CompareAndSwap(was, token); was = c.tokens.Load() {
	}
}

// askSlots is kvAsk for KV_SLOTS, whose tokens it notes.
func (c *Client) askSlots(ctx context.Context, what string, t FrameType, n int, fill func([]byte) []byte) ([]KVSlot, error) {
	slots, err := kvAsk(ctx, c, what, t, TypeKVSlots, n, fill, ParseKVSlots)
	for i := range slots {
		c.sawToken(slots[i].Token)
	}
	return slots, err
}

func keySize(key []byte) int { return 4 + len(key) }

// inFrames asks for as many at a time as a frame takes.
func inFrames[T, A any](all []T, size func(T) int, ask func([]T) ([]A, error)) ([]A, error) {
	answers := make([]A, 0, len(all))
	for len(all) > 0 {
		n, sum := 0, 16
		for n < min(len(all), MaxKVKeys) && sum+size(all[n]) <= MaxPayload {
			sum += size(all[n])
			n++
		}
		part, err := ask(all[:max(n, 1)])
		if err != nil {
			return answers, err
		}
		answers, all = append(answers, part...), all[max(n, 1):]
	}
	return answers, nil
}

// kvAsk asks for one answer for each of n.
func kvAsk[A any](ctx context.Context, c *Client, what string, t, want FrameType, n int, fill func([]byte) []byte, parse func([]byte) ([]A, error)) ([]A, error) {
	a, err := c.ask(ctx, t, want, fill)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	answers, err := parse(a.payload)
	if err == nil && len(answers) != n {
		err = errMalformed
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return answers, nil
}
