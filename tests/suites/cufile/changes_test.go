package cufile_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// promised is within how much time guarantee 2 of ARCHITECTURE.md has a change reported of which the kernel notifies.
const promised = 100 * time.Millisecond

// shardedStream reads random rows of a view over many shards, and compares them.
type shardedStream struct {
	shards, tokens int
	dir            string
	data           []byte
	f              *cufile.File
	memory         []byte             // of the host, where it goes to, or
	to             *cufile.Allocation // of the GPU
	random         *rand.Rand
}

const streamRows, streamRow = 100, 500

func (s *shardedStream) path(i int) string {
	return filepath.Join(s.dir, fmt.Sprintf("fineweb_train_%06d.bin", i))
}

// shardsIn makes shards in a new directory.
func shardsIn(t *testing.T, shards, tokens int) *shardedStream {
	t.Helper()
	s := &shardedStream{shards: shards, tokens: tokens, dir: t.TempDir(), random: rand.New(rand.NewPCG(blackbox.Seed(t), 5))}
	for i := range shards {
		shard := llmcShard(t, tokens, byte(i))
		s.data = append(s.data, shard[1024:]...)
		if err := os.WriteFile(s.path(i), shard, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// open opens the view of a mount with a reader.
func (s *shardedStream) open(t *testing.T, m *blackbox.Mount, o cufile.Options) {
	t.Helper()
	view, err := m.View("tokens.bin")
	if err != nil {
		t.Fatal(err)
	}
	r, err := cufile.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s.f, err = r.Open(t.Context(), view); err != nil {
		t.Fatal(err)
	}
	s.memory = make([]byte, streamRows*streamRow)
	free := func() error { return nil }
	if o.Device != cufile.HostDevice {
		if s.to, err = r.Alloc(int64(len(s.memory))); err != nil {
			t.Fatal(err)
		}
		free = s.to.Free
	}
	t.Cleanup(func() {
		if err := errors.Join(free(), closed(r)); err != nil {
			t.Error(err)
		}
	})
}

// batch reads rows, of one shard alone if that is not below 0, and says whether they are right.
func (s *shardedStream) batch(t *testing.T, shard int) (right bool, err error) {
	offsets, want := make([]int64, streamRows), []byte(nil)
	first, size := int64(0), int64(len(s.data))
	if shard >= 0 {
		first, size = int64(2*s.tokens*shard), int64(2*s.tokens)
	}
	for i := range offsets {
		offsets[i] = first + s.random.Int64N(size-streamRow+1)
		want = append(want, s.data[offsets[i]:][:streamRow]...)
	}
	to := cufile.Memory{Pointer: uintptr(unsafe.Pointer(unsafe.SliceData(s.memory))), Length: int64(len(s.memory))}
	if s.to != nil {
		to = s.to.Memory()
	}
	if _, err = s.f.GatherInto(t.Context(), cufile.Target{Memory: to}, offsets, streamRow); err != nil {
		return false, err
	}
	if s.to != nil {
		if err := s.to.CopyTo(s.memory, 0); err != nil {
			t.Fatal(err)
		}
	}
	return bytes.Equal(s.memory, want), nil
}

// right reads batches that must be right.
func (s *shardedStream) right(t *testing.T, batches int) {
	t.Helper()
	for range batches {
		if right, err := s.batch(t, -1); err != nil || !right {
			t.Fatalf("a batch is right: %v, %v", right, err)
		}
	}
}

// change is what becomes of a shard, and what readers are told of it.
type change struct {
	what string
	do   func(name string) error
	want error
	says string // of the bytes that came before
}

func changes() []change {
	rewrite := func(name string) error {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for i := range b[1024:] {
			b[1024+i] ^= 0xff
		}
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(b)
		return errors.Join(err, f.Close())
	}
	replace := func(name string) error {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(name+"~", b, 0o644), os.Rename(name+"~", name))
	}
	cut := func(name string) error { // within the last page: a GPU may see pages before it as they were
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		return os.Truncate(name, info.Size()-100)
	}
	return []change{
		{"replaced", replace, control.ErrStale, "bytes of it that came before are right"},
		{"removed", os.Remove, control.ErrStale, "bytes of it that came before are right"},
		{"rewritten", rewrite, control.ErrStale, "may be wrong"},
		{"cut", cut, cufile.ErrShort, "may be wrong"},
	}
}

// meets changes a shard under the stream, which goes on until it is told. While no daemon answers, the reader may find the change by itself: then it knows neither
// the name of the shard, nor more than that the file is not as it was.
func (s *shardedStream) meets(t *testing.T, shard int, c change, alone bool) {
	t.Helper()
	began, batches, wrong := time.Now(), 0, 0
	err := c.do(s.path(shard))
	if err != nil {
		t.Fatal(err)
	}
	done := time.Now() // a daemon may look before the shard is written to
	for err == nil && time.Since(began) < time.Minute {
		var right bool
		if right, err = s.batch(t, shard); err == nil {
			batches++
			if !right {
				wrong++
			}
		}
	}
	after := time.Since(began)
	t.Logf("%s: after %v and %d batches, %d of them wrong: %v", c.what, after.Round(time.Millisecond), batches, wrong, err)
	name := filepath.Base(s.path(shard))
	if after > 10*promised {
		t.Errorf("%s: it took %v to report it, ten times what is promised: %v", c.what, after, promised)
	}
	if alone && err != nil && !strings.Contains(err.Error(), name) {
		if !errors.Is(err, cufile.ErrShort) && !errors.Is(err, control.ErrStale) && !errors.Is(err, syscall.ESTALE) {
			t.Fatalf("%s: %v", c.what, err)
		}
		return
	}
	if !errors.Is(err, c.want) || !strings.Contains(err.Error(), name+" was "+c.what) || !strings.Contains(err.Error(), c.says) {
		t.Fatalf("%s: %v, want %v that names %s", c.what, err, c.want, name)
	}
	var changed *cufile.ChangedError
	if !errors.As(err, &changed) || changed.Since.IsZero() != strings.Contains(c.says, "are right") || changed.Since.After(done) {
		t.Fatalf("%s: bytes may be wrong since later than %v: %v", c.what, done, err)
	}
	if wrong > 0 && strings.Contains(c.says, "are right") {
		t.Fatalf("%s: wrong bytes in %d batches", c.what, wrong)
	}
	if _, err := s.batch(t, shard); !errors.Is(err, c.want) {
		t.Fatalf("%s: a later batch of the shard: %v", c.what, err)
	}
	for other := range s.shards { // the others go on
		if other%7 == 6 {
			if right, err := s.batch(t, other); err != nil || !right {
				t.Fatalf("shard %d is right: %v, %v", other, right, err)
			}
		}
	}
}

// TestChangesUnderAStream has shards replaced, removed, rewritten in place and cut under a stream over many, on the host and by mapped memory of the fake GPU.
func TestChangesUnderAStream(t *testing.T) {
	blackbox.NeedRoot(t)
	gpu := blackbox.FakeGPU(t)
	for name, o := range map[string]cufile.Options{
		"host":       {Device: cufile.HostDevice, Arena: 1 << 20, Threads: 2, Descriptors: 16},
		"registered": {Libraries: cufile.Libraries{CUDA: gpu[1], CuFile: gpu[3], NVML: gpu[5]}, Reuse: true, Descriptors: 16, Pinned: 64 << 20, Arena: 4 << 20, Slot: 64 << 10, Threads: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := shardsIn(t, 60, 4<<10)
			m, err := blackbox.Given(t).Mount(t.Context(), s.dir, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			s.open(t, m, o)
			s.right(t, 60)
			for i, c := range changes() {
				s.meets(t, 7*i+3, c, false)
			}
		})
	}
}

// TestChangesWhileDaemonsCome has shards change after a daemon was killed: while none answers, and when another does.
func TestChangesWhileDaemonsCome(t *testing.T) {
	blackbox.NeedRoot(t)
	s := shardsIn(t, 60, 4<<10)
	m, err := blackbox.Given(t).Mount(t.Context(), s.dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if m.Status(t).Handover.Why != "" {
		t.Skip("nobody holds the mount: " + m.Status(t).Handover.Why)
	}
	s.open(t, m, cufile.Options{Device: cufile.HostDevice, Arena: 1 << 20, Threads: 2, Descriptors: 16})
	s.right(t, 60)
	list := changes()
	for i, c := range slices.Concat(list, list) {
		if i < len(list) {
			if err := syscall.Kill(m.Status(t).PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		} else {
			m.Replace(t, time.Minute)
		}
		s.meets(t, 7*i+2, c, true)
	}
}
