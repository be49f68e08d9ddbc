// Package kv_test tests the built hbmfs over real KV volumes, as engines use them: processes that store and find blocks past FUSE, and are killed, as the
// daemon is.
//
// HBMFS_BINARY names the binary to test; under the race detector the daemon is built with it. Volumes need root.
package kv_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// patience bounds every wait of these tests.
const patience = 40 * time.Second

var suite *blackbox.Suite

func TestMain(m *testing.M) {
	if verb := os.Getenv(childVerb); verb != "" {
		os.Exit(runChild(verb))
	}
	os.Exit(blackbox.Main("kv", &suite, m.Run))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// volume is a mounted KV volume.
type volume struct {
	*blackbox.Mount
	dir, point, log string
	flags           []string
}

// mount mounts a new volume.
func mount(t testing.TB, flags ...string) *volume {
	t.Helper()
	blackbox.NeedRoot(t)
	v := &volume{dir: suite.NewDir(t), point: suite.NewDir(t), flags: flags}
	v.log = filepath.Join(suite.NewDir(t), "log")
	must(t, os.Chmod(v.dir, 0o755))
	v.mount(t)
	t.Cleanup(func() { v.end(t) })
	return v
}

func (v *volume) mount(t testing.TB) {
	t.Helper()
	var err error
	v.Mount, err = suite.Mount(context.Background(), v.dir, v.point, append(v.flags, "--kv", "--allow-other", "--log-file", v.log)...)
	must(t, err)
}

// end unmounts. The volume's daemon must end.
func (v *volume) end(t testing.TB) {
	t.Helper()
	v.EndsWellYet(t, v.log, patience)
}

func (v *volume) status(t testing.TB) *status.Status {
	t.Helper()
	s := v.Status(t)
	if s.KV == nil {
		t.Fatal("the status has no KV volume")
	}
	return s
}

// kill ends the daemon, and waits until the next one serves.
func (v *volume) kill(t testing.TB) {
	t.Helper()
	v.Replace(t, patience)
}

// taken is what the directory takes of its disk. A slab that grows takes what another file had: both are looked at until nothing changes meanwhile.
func taken(dir string) (sum int64) {
	var files map[string]int64
	for range 100 {
		before := files
		files, sum = map[string]int64{}, 0
		_ = filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
			var st syscall.Stat_t
			if err == nil && syscall.Lstat(path, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG {
				files[path] = st.Blocks * 512
				sum += files[path]
			}
			return nil
		})
		if maps.Equal(before, files) {
			break
		}
	}
	return sum
}

// engine is a connection of this process.
type engine struct {
	client *control.Client
	*control.Namespace
	tokens map[uint64]bool // that it was given, and that were not taken back
}

func newEngine(c *control.Client, n *control.Namespace) *engine {
	return &engine{c, n, map[uint64]bool{}}
}

// given notes tokens that came.
func (e *engine) given(slots []control.KVSlot) {
	for _, s := range slots {
		if s.Token != 0 {
			e.tokens[s.Token] = true
		}
	}
}

func (e *engine) Lookup(ctx context.Context, keys [][]byte, pin bool) ([]control.KVSlot, error) {
	slots, err := e.Namespace.Lookup(ctx, keys, pin)
	e.given(slots)
	return slots, err
}

func (e *engine) Reserve(ctx context.Context, blocks []control.KVBlock) ([]control.KVSlot, error) {
	slots, err := e.Namespace.Reserve(ctx, blocks)
	e.given(slots)
	return slots, err
}

func (e *engine) Commit(ctx context.Context, stored []control.KVStored) ([]control.KVDone, error) {
	done, err := e.Namespace.Commit(ctx, stored)
	for i := range done {
		delete(e.tokens, stored[i].Token)
	}
	return done, err
}

func (e *engine) Release(ctx context.Context, flags uint32, tokens ...uint64) ([]control.KVDone, error) {
	done, err := e.Namespace.Release(ctx, flags, tokens...)
	for i := range done {
		delete(e.tokens, tokens[i])
	}
	return done, err
}

func connect(ctx context.Context, root, name string, block int64, flags control.KVOpenFlags) (*engine, error) {
	c, err := control.Dial(ctx, root, "test")
	if err != nil {
		return nil, err
	}
	n, err := c.OpenKV(ctx, control.KVOpen{Name: name, BlockBytes: block, Mode: 0o640, Flags: flags})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return newEngine(c, n), nil
}

func (v *volume) connect(t testing.TB, name string, block int64) *engine {
	t.Helper()
	e, err := connect(t.Context(), v.point, name, block, control.KVCreate|control.KVWrite)
	must(t, err)
	t.Cleanup(func() { _ = e.close() })
	return e
}

// attach goes on with what an engine of this process holds, whose daemon was killed.
func (v *volume) attach(t testing.TB, before *engine, name string) *engine {
	t.Helper()
	c, err := control.Dial(t.Context(), v.point, "again")
	must(t, err)
	must(t, c.AttachKV(t.Context(), before.Client, before.client.Seen()))
	n, err := c.OpenKV(t.Context(), control.KVOpen{Name: name, Flags: control.KVWrite})
	must(t, err)
	e := newEngine(c, n)
	t.Cleanup(func() { _ = e.close() })
	return e
}

func (e *engine) close() error { return errors.Join(e.Close(), e.client.Close()) }

func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// blockOf is the block of a key: every engine would compute the same.
func blockOf(key string, length int) []byte {
	c, err := aes.NewCipher(fmt.Appendf(nil, "%-32.32s", key)) // ChaCha8 takes ten times as long under the race detector
	if err != nil {
		panic(err)
	}
	b := make([]byte, length)
	cipher.NewCTR(c, make([]byte, aes.BlockSize)).XORKeyStream(b, b)
	return b
}

// lengthOf is the length of it.
func lengthOf(key string, most int) int { return most/2 + int(castagnoli([]byte(key)))%(most/2) }

// put stores blocks, and tells which it stored.
func (e *engine) put(ctx context.Context, keys ...string) (stored []string, survives []control.KVSurvival, err error) {
	var blocks []control.KVBlock
	for _, k := range keys {
		blocks = append(blocks, control.KVBlock{Key: []byte(k), Length: uint32(lengthOf(k, int(e.BlockBytes)))})
	}
	slots, err := e.Reserve(ctx, blocks)
	if err != nil {
		return nil, nil, err
	}
	var done []control.KVStored
	for i, s := range slots {
		if s.Errno != 0 {
			continue
		}
		b := blockOf(keys[i], int(blocks[i].Length))
		if _, err := e.Files[s.Tier].WriteAt(b, int64(s.Slot)*e.SlotBytes); err != nil {
			return nil, nil, err
		}
		done = append(done, control.KVStored{Token: s.Token, CRC: castagnoli(b), Flags: control.KVHasCRC})
		stored = append(stored, keys[i])
	}
	answers, err := e.Commit(ctx, done)
	if err != nil {
		return nil, nil, err
	}
	kept := stored[:0]
	for i, a := range answers {
		switch a.Errno {
		case 0:
			kept, survives = append(kept, stored[i]), append(survives, a.Survives)
		case syscall.EIO: // of a disk that is ill
		default:
			return nil, nil, fmt.Errorf("commit %s: %w", stored[i], a.Errno)
		}
	}
	return kept, survives, nil
}

// errWrong says that a block has other bytes than its key's.
var errWrong = errors.New("wrong bytes")

// get reads blocks, and tells which were there. Bytes count once their pin's release was answered.
func (e *engine) get(ctx context.Context, keys ...string) (found []string, err error) {
	var asked [][]byte
	for _, k := range keys {
		asked = append(asked, []byte(k))
	}
	slots, err := e.Lookup(ctx, asked, true)
	if err != nil {
		return nil, err
	}
	var tokens []uint64
	var read [][]byte
	for i, s := range slots {
		if s.Errno != 0 {
			continue
		}
		b := make([]byte, s.Length)
		if _, err := e.Files[s.Tier].ReadAt(b, int64(s.Slot)*e.SlotBytes); err != nil {
			return nil, err
		}
		tokens, read, found = append(tokens, s.Token), append(read, b), append(found, keys[i])
	}
	done, err := e.Release(ctx, 0, tokens...)
	if err != nil {
		return nil, err
	}
	for i, d := range done {
		if d.Errno == 0 && !bytes.Equal(read[i], blockOf(found[i], lengthOf(found[i], int(e.BlockBytes)))) {
			return nil, fmt.Errorf("%w in block %s", errWrong, found[i])
		}
	}
	return found, nil
}

func keysOf(first, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("key-%08d", first+i))
	}
	return keys
}
