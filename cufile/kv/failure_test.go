package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/kv/kvtest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

var small = kvtest.Options{BlockBytes: 200_000, Memory: 10, Region: 5}

// once does something before the first frame of a type, and has it answered or not.
func (b *bed) once(t control.FrameType, answer bool, do func()) {
	var done atomic.Bool
	b.daemon.Before(func(got control.FrameType) bool {
		if got == t && done.CompareAndSwap(false, true) {
			do()
			return answer
		}
		return true
	})
}

func TestRequestsGoOnWithTheNextDaemon(t *testing.T) {
	for _, frame := range []control.FrameType{control.TypeKVReserve, control.TypeKVCommit, control.TypeKVLookup, control.TypeKVRelease} {
		for name, end := range map[string]func(d *kvtest.Daemon){
			"that knows all": (*kvtest.Daemon).Cut, "that knows no tokens": (*kvtest.Daemon).Forget, "of another mount": (*kvtest.Daemon).Remount,
		} {
			t.Run(fmt.Sprintf("frame %d, %s", frame, name), func(t *testing.T) {
				b := open(t, "host", small, Options{Sums: true})
				blocks, data, _ := b.blocks(false, 1, sizes...)
				b.once(frame, false, func() { end(b.daemon) })
				b.want(b.put(blocks).Outcomes, all(Done, len(blocks))...)
				fresh, look := b.empty(data, blocks)
				b.want(b.get(fresh).Outcomes, all(Done, len(blocks))...)
				b.same(data, look)
				if n := b.daemon.Held(); n != 0 {
					t.Errorf("%d pins and reservations are held, want none", n)
				}
				if st := b.Stats(); st.Connections < 2 || st.Stored != int64(len(blocks)) || st.Loaded != int64(len(blocks)) {
					t.Errorf("stats are %+v", st)
				}
			})
		}
	}
}

// A slot may get other bytes once a pin has ended, and what was read of it is nothing then.
func TestBytesWhosePinEndedAreReadAgain(t *testing.T) {
	each(t, small, Options{}, func(b *bed) {
		blocks, data, _ := b.blocks(false, 1, 200_000)
		b.put(blocks)
		b.once(control.TypeKVRelease, true, func() {
			must(b.t, b.daemon.Damage(string(blocks[0].Key))) // as another block's bytes would
			must(b.t, b.daemon.Damage(string(blocks[0].Key)))
			b.daemon.Forget()
		})
		fresh, look := b.empty(data, blocks)
		b.want(b.get(fresh).Outcomes, Done)
		b.same(data, look)
		if n := b.daemon.Asked(control.TypeKVLookup); n < 2 {
			b.t.Errorf("%d lookups, want two", n)
		}
	})
}

func TestDamageIsFoundBySums(t *testing.T) {
	each(t, small, Options{Sums: true}, func(b *bed) {
		blocks, data, _ := b.blocks(false, 1, 70_000, 200_000)
		b.put(blocks)
		must(b.t, b.daemon.Damage(string(blocks[1].Key)))
		fresh, look := b.empty(data, blocks)
		b.want(b.get(fresh).Outcomes, Done, Damaged)
		b.same(data[:1], look)
		b.want(b.get(fresh).Outcomes, Done, Missing) // the daemon has dropped it
		if n := b.daemon.Held(); n != 0 {
			b.t.Errorf("%d pins are held, want none", n)
		}
	})
}

// Blocks on the disk have checksums, whoever wants some.
func TestDamageOfTheDiskIsAlwaysFound(t *testing.T) {
	for _, direct := range []bool{false, true} {
		each(t, kvtest.Options{BlockBytes: 200_000, Disk: 10, Direct: direct}, Options{}, func(b *bed) {
			blocks, data, _ := b.blocks(false, 2, 70_000, 200_000, 200_000)
			b.put(blocks)
			must(b.t, b.daemon.Damage(string(blocks[1].Key)))
			must(b.t, b.daemon.Unsum(string(blocks[2].Key))) // as another client may have stored it
			fresh, look := b.empty(data, blocks)
			b.want(b.get(fresh).Outcomes, Done, Damaged, Damaged)
			b.same(data[:1], look)
			if n := b.daemon.Held(); n != 0 {
				b.t.Errorf("%d pins are held, want none", n)
			}
		})
	}
}

// Bytes that do not match are damage only if their pin held. Otherwise the slot may have got another block meanwhile.
func TestBytesOfTheDiskWhosePinEndedAreReadAgain(t *testing.T) {
	each(t, kvtest.Options{BlockBytes: 200_000, Disk: 10}, Options{}, func(b *bed) {
		blocks, data, _ := b.blocks(false, 1, 200_000)
		b.put(blocks)
		must(b.t, b.daemon.Damage(string(blocks[0].Key)))
		b.once(control.TypeKVRelease, true, func() {
			must(b.t, b.daemon.Damage(string(blocks[0].Key))) // which makes it right again
			b.daemon.Forget()
		})
		fresh, look := b.empty(data, blocks)
		b.want(b.get(fresh).Outcomes, Done)
		b.same(data, look)
	})
}

func TestASlabThatWasCutIsNoBlock(t *testing.T) {
	for _, d := range []kvtest.Options{small, {BlockBytes: 200_000, Disk: 10}, {BlockBytes: 200_000, Disk: 10, Direct: true}} {
		b := open(t, "host", d, Options{})
		blocks, data, _ := b.blocks(false, 1, 70_000, 200_000)
		b.put(blocks)
		must(t, b.daemon.Truncate(0, 4096*49))
		fresh, look := b.empty(data, blocks)
		b.want(b.get(fresh).Outcomes, Done, Failed)
		b.same(data[:1], look)
		if n := b.daemon.Held(); n != 0 {
			t.Errorf("%d pins are held, want none", n)
		}
	}
}

func TestMoreThanThereIsRoom(t *testing.T) {
	each(t, kvtest.Options{BlockBytes: 4096, Memory: 3, Disk: 2}, Options{}, func(b *bed) {
		blocks, _, _ := b.blocks(false, 1, 4096, 4095, 4094, 4093, 4092, 4091)
		r := b.put(blocks)
		b.want(r.Outcomes, Done, Done, Done, Done, Done, NoRoom)
		if r.Moved.Memory != 4096+4095+4094 || r.Moved.Disk != 4093+4092 {
			b.t.Errorf("moved %+v", r.Moved)
		}
		if r.Survives[0] != control.KVNothing || r.Survives[5] != 0 {
			b.t.Errorf("survives %v", r.Survives)
		}
	})
}

func TestBlocksOfAnotherLengthAreNotLoaded(t *testing.T) {
	b := open(t, "host", small, Options{})
	blocks, _, _ := b.blocks(false, 1, 5000)
	b.put(blocks)
	q, err := b.Get([]Block{{Key: blocks[0].Key, Parts: []Memory{{Host: make([]byte, 4999)}}}}, nil, nil)
	must(t, err)
	r, err := q.Result()
	must(t, err)
	b.want(r.Outcomes, Length)
}

func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	each(t, small, Options{}, func(b *bed) {
		one := []Memory{{Host: []byte{1}}}
		for _, block := range []Block{
			{Key: nil, Parts: one}, {Key: make([]byte, 65), Parts: one}, {Key: []byte("k")}, {Key: []byte("k"), Parts: []Memory{{Host: make([]byte, 200_001)}}},
			{Key: []byte("k"), Parts: []Memory{{HBM: 4096, N: 8}}}, {Key: []byte("k"), Parts: []Memory{{HBM: 4096, N: -8}}},
		} {
			if _, err := b.Put([]Block{block}, nil, nil); !errors.Is(err, ErrBlock) && !errors.Is(err, ErrMemory) {
				b.t.Errorf("%+v: %v", block, err)
			}
		}
		if _, err := b.Contains([][]byte{{}}, nil); !errors.Is(err, ErrBlock) {
			b.t.Error(err)
		}
	})
}

func TestMemoryThatIsNotThereIsAnError(t *testing.T) {
	b := open(t, "host", small, Options{})
	bad := device.OfHost(8192, 5000)
	q, err := b.Put([]Block{{Key: []byte("k"), Parts: []Memory{bad}}}, nil, nil)
	must(t, err)
	if _, err := q.Result(); !errors.Is(err, ErrMemory) {
		t.Fatal(err)
	}
	if n := b.daemon.Held(); n != 0 {
		t.Errorf("%d reservations are held, want none", n)
	}
	blocks, _, _ := b.blocks(false, 1, 5000)
	b.put(blocks)
	q, err = b.Get([]Block{{Key: blocks[0].Key, Parts: []Memory{bad}}}, nil, nil)
	must(t, err)
	if _, err := q.Result(); !errors.Is(err, ErrMemory) {
		t.Fatal(err)
	}
}

func TestAnotherStoreMayOnlyRead(t *testing.T) {
	b := open(t, "host", small, Options{})
	blocks, data, _ := b.blocks(false, 1, 5000, 200_000)
	b.put(blocks)
	reader, err := Open(context.Background(), b.root, "test", Options{Device: HostDevice})
	must(t, err)
	defer func() { must(t, reader.Close()) }()
	if _, err := reader.Put(blocks, nil, nil); !errors.Is(err, ErrReadOnly) {
		t.Error(err)
	}
	fresh, look := b.empty(data, blocks)
	q, err := reader.Get(fresh, nil, nil)
	must(t, err)
	r, err := q.Result()
	must(t, err)
	b.want(r.Outcomes, Done, Done)
	b.same(data, look)
	if _, err := Open(context.Background(), b.root, "test", Options{Device: HostDevice, BlockBytes: 77}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func TestPinsAreKeptUntilTheyAreGivenUp(t *testing.T) {
	b := open(t, "host", small, Options{})
	blocks, _, _ := b.blocks(false, 1, 5000)
	b.put(blocks)
	q, err := b.Pin([][]byte{blocks[0].Key, []byte("none")}, nil)
	must(t, err)
	r, err := q.Result()
	must(t, err)
	b.want(r.Outcomes, Done, Missing)
	if n := b.daemon.Held(); n != 1 || r.Tokens[0] == 0 || r.Tokens[1] != 0 {
		t.Fatalf("%d pins, tokens %v", n, r.Tokens)
	}
	b.daemon.Cut()
	q, err = b.Unpin(r.Tokens[:1], nil)
	must(t, err)
	r, err = q.Result()
	must(t, err)
	b.want(r.Outcomes, Done)
	if n := b.daemon.Held(); n != 0 {
		t.Errorf("%d pins are held, want none", n)
	}
}

func TestARequestCanBeCancelled(t *testing.T) {
	b := open(t, "host", small, Options{})
	held := make(chan struct{})
	b.once(control.TypeKVCommit, false, func() { <-held })
	blocks, _, _ := b.blocks(false, 1, 5000)
	told := make(chan struct{})
	q, err := b.Put(blocks, nil, func() { close(told) })
	must(t, err)
	for b.daemon.Asked(control.TypeKVCommit) == 0 {
		time.Sleep(time.Millisecond)
	}
	q.Cancel()
	close(held)
	if _, err := q.Result(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	<-told
	if n := b.daemon.Held(); n != 0 {
		t.Errorf("%d reservations are held, want none", n)
	}
}

// Parts of a request wait for their turn with slots that the daemon gave.
func TestACancelledRequestGivesUpWhatWaits(t *testing.T) {
	const n = 2 * partsAtOnce * partBlocks
	b := open(t, "host", kvtest.Options{BlockBytes: 512, Memory: n}, Options{})
	m, _ := b.memory(noise(512, 1))
	blocks := make([]Block, n)
	for i := range blocks {
		blocks[i] = Block{Key: fmt.Appendf(nil, "key %d", i), Parts: []Memory{m}}
	}
	stands := make(chan struct{})
	b.once(control.TypeKVReserve, true, func() { <-stands })
	q, err := b.Put(blocks, nil, nil)
	must(t, err)
	for range movesAtOnce {
		q.moving <- struct{}{}
	}
	close(stands)
	for b.daemon.Asked(control.TypeKVReserve)-b.daemon.Asked(control.TypeKVCommit) < partsAtOnce {
		time.Sleep(time.Millisecond)
	}
	q.Cancel()
	if _, err := q.Result(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n := b.daemon.Held(); n != 0 {
		t.Errorf("%d reservations are held, want none", n)
	}
}

func TestManyBlocks(t *testing.T) {
	const n = 1200
	each(t, kvtest.Options{BlockBytes: 512, Memory: n, Region: 300}, Options{Sums: true}, func(b *bed) {
		p := noise(n*500, 8)
		m, _ := b.memory(p)
		back, look := b.memory(make([]byte, n*500))
		var blocks, fresh []Block
		for i := range int64(n) {
			key := fmt.Appendf(nil, "key %d", i)
			blocks = append(blocks, Block{Key: key, Parts: []Memory{m.Part(i*500, 500)}})
			fresh = append(fresh, Block{Key: key, Parts: []Memory{back.Part(i*500, 200), back.Part(i*500+200, 300)}})
		}
		b.want(b.put(blocks).Outcomes, all(Done, n)...)
		r := b.get(fresh)
		b.want(r.Outcomes, all(Done, n)...)
		if !bytes.Equal(look(), p) {
			b.t.Fatal("other bytes came back")
		}
		want := map[string]int64{"host": r.Moved.Host, "gpu": r.Moved.Mapped, "gpu without registration": r.Moved.Staged}[b.on]
		if want != n*500 || r.Moved.Memory != n*500 {
			b.t.Errorf("moved %+v", r.Moved)
		}
	})
}

// Many requests find at once that the daemon has gone: the first of them closes the connection that the others wait on.
func TestManyRequestsGoOnTogether(t *testing.T) {
	b := open(t, "host", kvtest.Options{BlockBytes: 4096, Memory: 400}, Options{})
	for round := range 10 {
		var all []*Request
		for i := range 30 {
			q, err := b.Put([]Block{{Key: fmt.Appendf(nil, "%d-%d", round, i), Parts: []Memory{{Host: noise(4096, byte(i))}}}}, nil, nil)
			must(t, err)
			all = append(all, q)
			if i == 15 {
				b.daemon.Cut()
			}
		}
		for _, q := range all {
			r, err := q.Result()
			must(t, err)
			if r.Outcomes[0] != Done {
				t.Fatalf("a block is %v", r.Outcomes[0])
			}
		}
		if n := b.daemon.Held(); n != 0 {
			t.Fatalf("%d reservations are held, want none", n)
		}
	}
}

// The daemon is replaced just after it gave slots, and the next one is found before the request has taken hold of their tiers.
func TestSlotsOfADaemonThatWentAreGivenUp(t *testing.T) {
	b := open(t, "host", kvtest.Options{BlockBytes: 4096, Memory: 400}, Options{look: 10 * time.Microsecond})
	waits := rand.New(rand.NewPCG(blackbox.Seed(t), 1))
	for round := range 50 {
		p, _ := b.memory(noise(4096, 1))
		block := []Block{{Key: fmt.Append(nil, round), Parts: []Memory{p}}}
		for what, start := range []func([]Block, *uintptr, func()) (*Request, error){b.Put, b.Get} {
			q, err := start(block, nil, nil)
			must(t, err)
			time.Sleep(time.Duration(waits.IntN(100)) * time.Microsecond)
			b.daemon.Cut()
			r, err := q.Result()
			must(t, err)
			if r.Outcomes[0] != Done || b.daemon.Held() != 0 {
				t.Fatalf("request %d of round %d is %v, and %d pins and reservations are held", what, round, r.Outcomes[0], b.daemon.Held())
			}
		}
	}
}

// What an answer gave that did not come is given back by the next connection.
func TestLostAnswersHoldNothing(t *testing.T) {
	each(t, small, Options{}, func(b *bed) {
		blocks, data, _ := b.blocks(false, 1, sizes...)
		b.daemon.Mute(control.TypeKVReserve)
		b.want(b.put(blocks).Outcomes, all(Done, len(blocks))...)
		fresh, look := b.empty(data, blocks)
		b.daemon.Mute(control.TypeKVLookup)
		b.want(b.get(fresh).Outcomes, all(Done, len(blocks))...)
		b.same(data, look)
		if n := b.daemon.Held(); n != 0 || b.Stats().Connections != 3 {
			b.t.Errorf("%d pins and reservations are held, want none; %d connections, want 3", n, b.Stats().Connections)
		}
		q, err := b.Pin([][]byte{blocks[0].Key}, nil)
		must(b.t, err)
		r, err := q.Result()
		must(b.t, err)
		b.daemon.Mute(control.TypeKVLookup)
		b.get(fresh)
		if n := b.daemon.Held(); n != 1 {
			b.t.Errorf("%d pins are held, want the one that was seen", n)
		}
		q, err = b.Unpin(r.Tokens, nil)
		must(b.t, err)
		_, err = q.Result()
		must(b.t, err)
	})
}

// The kernel finds memory that is not there where a disk's blocks are read and written without a copy. It is no fault of the disk.
func TestMemoryThatIsNotThereIsNoFaultOfTheDisk(t *testing.T) {
	for _, direct := range []bool{false, true} {
		b := open(t, "host", kvtest.Options{BlockBytes: 200_000, Disk: 20, Region: 5, Direct: direct}, Options{})
		bad := device.OfHost(8192, 8192)
		q, err := b.Put([]Block{{Key: []byte("k"), Parts: []Memory{bad}}}, nil, nil)
		must(t, err)
		if result, err := q.Result(); !errors.Is(err, ErrMemory) {
			t.Errorf("put, direct %t: %v, %v", direct, result, err)
		}
		blocks, _, _ := b.blocks(false, 1, 8192)
		b.put(blocks)
		q, err = b.Get([]Block{{Key: blocks[0].Key, Parts: []Memory{bad}}}, nil, nil)
		must(t, err)
		if result, err := q.Result(); !errors.Is(err, ErrMemory) {
			t.Errorf("get, direct %t: %v, %v", direct, result, err)
		}
	}
}

// What a request could not give up, since no daemon answered, the next connection gives up.
func TestWhatIsNotNeededIsGivenUpLater(t *testing.T) {
	b := open(t, "host", small, Options{redial: 2 * time.Second}) // in which the daemon answers on a busy machine, too
	blocks, _, _ := b.blocks(false, 1, 5000)
	b.put(blocks)
	b.daemon.Before(func(t control.FrameType) bool { return t != control.TypeKVRelease }) // which is never answered
	q, err := b.Get([]Block{{Key: blocks[0].Key, Parts: []Memory{device.OfHost(8192, 5000)}}}, nil, nil)
	must(t, err)
	if _, err := q.Result(); !errors.Is(err, ErrMemory) {
		t.Fatal(err)
	}
	if n := b.daemon.Held(); n != 1 {
		t.Fatalf("%d pins are held, want one", n)
	}
	b.daemon.Before(nil)
	b.daemon.Cut()
	fresh, _ := b.empty([][]byte{make([]byte, 5000)}, blocks)
	b.want(b.get(fresh).Outcomes, Done)
	if n := b.daemon.Held(); n != 0 {
		t.Errorf("%d pins are held, want none", n)
	}
}

// The daemon took memory back while this process had no connection: its mapping and its registration are of pages that nobody reads.
func TestMemoryThatWentIsMappedAnew(t *testing.T) {
	each(t, small, Options{}, func(b *bed) {
		blocks, data, _ := b.blocks(false, 1, sizes...)
		b.put(blocks)
		look := func() *tier {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.now.tiers[0]
		}
		first := look()
		b.daemon.Cut()
		fresh, bytes := b.empty(data, blocks)
		b.want(b.get(fresh).Outcomes, all(Done, len(blocks))...)
		if look() != first {
			b.t.Error("memory that stayed was mapped anew")
		}
		b.daemon.Recut()
		b.daemon.Cut()
		b.want(b.get(fresh).Outcomes, all(Done, len(blocks))...)
		b.same(data, bytes)
		if look() == first {
			b.t.Error("memory that went is used still")
		}
	})
}

// A store that asks nothing goes to the next daemon by itself: others would be given the memory that it has registered.
func TestAnIdleStoreComesBack(t *testing.T) {
	b := open(t, "host", small, Options{look: time.Millisecond})
	for want := int64(2); want < 5; want++ {
		b.daemon.Cut()
		for end := time.Now().Add(time.Minute); b.Stats().Connections < want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d connections, want %d", b.Stats().Connections, want)
			}
		}
	}
}
