// Package kvadmin looks after a mounted KV volume for its administrator. It chooses namespaces by name, has the daemon verify their
// blocks, and removes them. Engines go on meanwhile.
package kvadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/observe/status"
)

// Volume is a mounted KV volume. Its status has the namespaces that were chosen, and no others.
type Volume struct {
	*status.KV
	mount string
}

// Open reads the status of the KV volume at mount, and chooses namespaces, all where none is named.
func Open(mount string, names []string) (*Volume, error) {
	root, err := control.Root(mount)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, mountpoint.ControlName, "status"))
	if err != nil {
		return nil, err
	}
	return choose(root, text, names)
}

// choose makes a volume of its status.
func choose(root string, text []byte, names []string) (*Volume, error) {
	var s status.Status
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("read the status of %s: %w", root, err)
	}
	v := &Volume{s.KV, root}
	if v.KV == nil {
		return nil, fmt.Errorf("%s is no KV volume: hbmfs kv mount makes one", root)
	}
	if len(names) == 0 {
		return v, nil
	}
	all := v.Namespaces
	v.Namespaces = nil
	for _, name := range names {
		i := slices.IndexFunc(all, func(n status.Namespace) bool { return n.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("%s has no namespace %q: hbmfs kv ls %s lists them", root, name, root)
		}
		v.Namespaces = append(v.Namespaces, all[i])
	}
	return v, nil
}

// Verification is the result of one namespace, and the JSON of hbmfs kv verify.
type Verification struct {
	Namespace string  `json:"namespace"`
	Blocks    uint64  `json:"blocks"`
	Bytes     uint64  `json:"bytes"`
	Unknown   uint64  `json:"without_checksum"`
	Damaged   uint64  `json:"damaged"` // and dropped
	Seconds   float64 `json:"seconds"`
}

// Verify has the daemon compare all blocks with their checksums. It reports to progress each namespace that
// begins, with its number of slots.
func (v *Volume) Verify(ctx context.Context, progress func(doing string, total int64, bytes bool) (add func(int64), end func())) ([]Verification, error) {
	all := []Verification{}
	err := v.each(ctx, func(name string, n *control.Namespace) error {
		one, began := Verification{Namespace: name}, time.Now()
		part, err := n.Verify(ctx, 0)
		if err != nil {
			return err
		}
		add, end := progress("verifying "+name+", slots", int64(part.Slots), false)
		defer end()
		for last := uint64(0); ; last = part.Cursor {
			add(int64(part.At - last))
			one.Blocks, one.Bytes, one.Unknown, one.Damaged = one.Blocks+part.Blocks, one.Bytes+part.Bytes, one.Unknown+part.Unknown, one.Damaged+part.Damaged
			if part.Cursor == 0 {
				break
			}
			if part, err = n.Verify(ctx, part.Cursor); err != nil {
				return err
			}
		}
		one.Seconds = time.Since(began).Seconds()
		all = append(all, one)
		return nil
	})
	return all, err
}

// Clear removes all blocks. It gives the namespaces, and how many blocks they had.
func (v *Volume) Clear(ctx context.Context) (names []string, blocks uint64, err error) {
	names = []string{}
	for i := range v.Namespaces {
		blocks += v.Namespaces[i].Memory.Blocks + v.Namespaces[i].Disk.Blocks
	}
	err = v.each(ctx, func(name string, n *control.Namespace) error {
		names = append(names, name)
		return n.Clear(ctx)
	})
	return names, blocks, err
}

// each calls f with the namespaces, open for writing.
func (v *Volume) each(ctx context.Context, f func(name string, n *control.Namespace) error) error {
	client, err := control.Dial(ctx, v.mount, "hbmfs kv")
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // all was answered
	for _, one := range v.Namespaces {
		n, err := client.OpenKV(ctx, control.KVOpen{Name: one.Name, Flags: control.KVWrite})
		if errors.Is(err, syscall.EACCES) {
			return fmt.Errorf("%w: it belongs to user %d, with mode %s", err, one.UID, one.Mode)
		}
		if err != nil {
			return err
		}
		if err := errors.Join(f(one.Name, n), n.Close()); err != nil {
			return err
		}
	}
	return nil
}
