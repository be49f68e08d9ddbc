package drain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

const mib = 1 << 20

// publish makes a checkpoint of files with these sizes.
func publish(t testing.TB, dir, name string, part checkpoint.Part, sizes map[string]int) {
	t.Helper()
	d, err := checkpoint.Begin(t.Context(), filepath.Join(dir, name), part)
	must(t, err)
	defer func() { must(t, d.Drop()) }()
	var files []checkpoint.File
	for file, size := range sizes {
		data := content(name+file, size)
		path := filepath.Join(d.Dir(), file)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, data, 0o644))
		f := checkpoint.File{Name: file, Size: int64(size)}
		for at := 0; at < size; at += checkpoint.Chunk {
			f.Sums = append(f.Sums, crc32.Checksum(data[at:min(size, at+checkpoint.Chunk)], crc32.MakeTable(crc32.Castagnoli)))
		}
		files = append(files, f)
	}
	must(t, d.Publish(t.Context(), files))
}

// made are contents that were made before: under the race detector that takes long.
var made sync.Map

func content(seed string, size int) []byte {
	name := fmt.Sprint(seed, " ", size)
	if data, ok := made.Load(name); ok {
		return data.([]byte)
	}
	var key [32]byte
	copy(key[:], seed)
	data := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(data)
	made.Store(name, data)
	return data
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fast are options of tests.
func fast() Options {
	return Options{
		Rate: Unlimited, PartSize: 8 * mib, Connections: 4, Poll: 10 * time.Millisecond, Patience: 2 * time.Minute,
		retryFirst: time.Millisecond, retryMost: 20 * time.Millisecond, stall: 15 * time.Second, failedFirst: 20 * time.Millisecond, failedMost: 50 * time.Millisecond,
		waitFirst: 5 * time.Millisecond, waitMost: 20 * time.Millisecond,
	}
}

func open(t testing.TB, dir, to string, opt Options) *Drain {
	t.Helper()
	opt.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	d, err := New(dir, to, opt)
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// once drains a directory by a life of its own.
func once(t testing.TB, dir, to string, opt Options) map[string]string {
	t.Helper()
	d := open(t, dir, to, opt)
	must(t, d.Once(t.Context()))
	must(t, d.Close())
	return states(d)
}

// states are the states of all checkpoints, and why they are so.
func states(d *Drain) map[string]string {
	all := map[string]string{}
	for _, e := range d.Status().Checkpoints {
		all[e.Name] = strings.TrimSuffix(e.State+": "+e.Why, ": ")
	}
	return all
}

// compare compares a checkpoint in the store with the directory.
func compare(t testing.TB, s *store, prefix, dir, name string, sizes map[string]int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	manifest, err := os.ReadFile(filepath.Join(dir, name, checkpoint.ManifestName))
	must(t, err)
	for file, size := range sizes {
		if o := s.objects[prefix+name+"/"+file]; o == nil || !bytes.Equal(o.data, content(name+file, size)) {
			t.Errorf("object %s/%s is not the file", name, file)
		}
	}
	if o := s.objects[prefix+name+"/"+checkpoint.ManifestName]; o == nil || !bytes.Equal(o.data, manifest) {
		t.Errorf("%s has not its manifest", name)
	}
	if len(s.uploads) > 0 {
		t.Errorf("%d uploads are left", len(s.uploads))
	}
}

// usual is a checkpoint with files of all kinds.
func usual() map[string]int {
	return map[string]int{"empty": 0, "small": 1000, "a/b/more": checkpoint.Chunk + 1, "part": 8 * mib, "big": 16*mib + 17}
}

func TestDrain(t *testing.T) {
	for _, how := range []struct {
		name string
		set  func(*store)
	}{
		{"CRC-32C", func(*store) {}},
		{"MD5", func(s *store) { s.noSums = true }},
		{"no conditional writes", func(s *store) { s.noConditions = true }},
	} {
		t.Run(how.name, func(t *testing.T) {
			s, dir := newStore(t), t.TempDir()
			how.set(s)
			publish(t, dir, "step-9", checkpoint.Part{Of: 1}, usual())
			publish(t, dir, "step-10", checkpoint.Part{Of: 1}, map[string]int{"x": 5})
			for range 2 { // the second time nothing is sent
				got := once(t, dir, s.url("run"), fast())
				if got["step-9"] != Remote || got["step-10"] != Remote {
					t.Fatalf("the states are %v", got)
				}
				compare(t, s, "run/", dir, "step-9", usual())
				if name, n := s.mostStored(); n != 1 {
					t.Errorf("%s was sent %d times", name, n)
				}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			last := ""
			for _, call := range s.calls {
				if strings.HasPrefix(call, "put run/step-9/") || strings.HasPrefix(call, "complete run/step-9/") {
					last = call
				}
			}
			if last != "put run/step-9/"+checkpoint.ManifestName {
				t.Errorf("the last object is %q, and not the manifest", last)
			}
		})
	}
}

func TestKeep(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for _, name := range []string{"step-8", "step-9", "step-10", "step-11"} {
		publish(t, dir, name, checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	}
	s.set(func() {
		s.before = func(op, key string, w http.ResponseWriter, _ *http.Request) (bool, func(http.ResponseWriter)) {
			if refused := op == "put" && strings.HasPrefix(key, "run/step-8/"); refused {
				fail(w, http.StatusForbidden, "AccessDenied")
				return true, nil
			}
			return false, nil
		}
	})
	opt := fast()
	opt.Keep = 2
	got := once(t, dir, s.url("run"), opt)
	if !strings.HasPrefix(got["step-8"], "failed: ") || got["step-10"] != Remote || got["step-11"] != Remote || len(got) != 3 {
		t.Fatalf("the states are %v", got)
	}
	all, err := checkpoint.List(dir)
	must(t, err)
	if len(all) != 3 || all[0].Name != "step-8" {
		t.Errorf("the directory has %v", all)
	}
	s.set(func() {
		s.before = nil
		delete(s.objects, "run/step-10/x") // somebody removes what was remote
	})
	opt.Keep = 1
	once(t, dir, s.url("run"), opt)
	all, err = checkpoint.List(dir)
	must(t, err)
	if len(all) != 1 || all[0].Name != "step-11" {
		t.Errorf("step-8 is remote and should be gone, and so is step-10 again: %v", all)
	}
	if s.objects["run/step-10/x"] == nil {
		t.Error("step-10 was removed, and is damaged at the destination")
	}
}

// TestBadPlaces has each kind of somebody else's object. Nothing of it is changed.
func TestBadPlaces(t *testing.T) {
	sizes := map[string]int{"x": 5, "big": 9 * mib}
	for _, c := range []struct {
		name, key, says string
		own             bool // the place was this volume's before
	}{
		{"an object at the top", "run/data.bin", "is there already", false},
		{"another directory", "run/shards/0.bin", "is there already", false},
		{"a mark of something else", "run/" + MarkName, "none of hbmfs's", false},
		{"a file that is none of the checkpoint's", "run/step-1/other", "none of its files", true},
		{"another file of the name", "run/step-1/x", "other bytes", true},
		{"another large file of the name", "run/step-1/big", "other bytes", true},
		{"another checkpoint of the name", "run/step-1/" + checkpoint.ManifestName, "never overwritten", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, dir := newStore(t), t.TempDir()
			if c.own {
				publish(t, dir, "step-0", checkpoint.Part{Of: 1}, map[string]int{"x": 5})
				once(t, dir, s.url("run"), fast())
			}
			publish(t, dir, "step-1", checkpoint.Part{Of: 1}, sizes)
			theirs := &object{data: []byte("other"), etag: "0123456789abcdef0123456789abcdef"}
			s.set(func() { s.objects[c.key] = theirs })
			got := once(t, dir, s.url("run"), fast())
			if !strings.HasPrefix(got["step-1"], "failed: ") || !strings.Contains(got["step-1"], c.says) {
				t.Errorf("the states are %v, and should say %q", got, c.says)
			}
			if s.objects[c.key] != theirs {
				t.Error("somebody else's object was changed")
			}
		})
	}
}

func TestTwoVolumes(t *testing.T) {
	s, one, two := newStore(t), t.TempDir(), t.TempDir()
	publish(t, one, "step-1", checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	publish(t, two, "step-2", checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	once(t, one, s.url("run"), fast())
	got := once(t, two, s.url("run"), fast())
	if !strings.Contains(got["step-2"], "two volumes do not share a place") || !strings.Contains(got["step-2"], one) {
		t.Fatalf("the second volume has %v", got)
	}
	opt := fast()
	opt.TakeOver = true
	if got = once(t, two, s.url("run"), opt); got["step-2"] != Remote {
		t.Fatalf("the second volume takes over, and has %v", got)
	}
	publish(t, one, "step-3", checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	if got = once(t, one, s.url("run"), fast()); !strings.Contains(got["step-3"], "two volumes") || got["step-1"] != Remote {
		t.Errorf("the first volume was taken over, and has %v", got)
	}
	// A copy of the directory is another volume.
	three := t.TempDir()
	must(t, os.CopyFS(three, os.DirFS(two)))
	publish(t, three, "step-4", checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	if got = once(t, three, s.url("run"), fast()); !strings.Contains(got["step-4"], "two volumes") {
		t.Errorf("the copy has %v", got)
	}
}

func TestOneDrainADirectory(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	d := open(t, dir, s.url("run"), fast())
	must(t, d.Once(t.Context()))
	if err := open(t, dir, s.url("other"), fast()).Once(t.Context()); !errors.Is(err, ErrBusy) {
		t.Errorf("a second drain gives %v", err)
	}
}

func TestDamaged(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	publish(t, dir, "step-1", checkpoint.Part{Of: 1}, usual())
	f, err := os.OpenFile(filepath.Join(dir, "step-1", "big"), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte{1, 2, 3}, 15*mib)
	must(t, errors.Join(err, f.Close()))
	got := once(t, dir, s.url("run"), fast())
	if !strings.Contains(got["step-1"], `file "big"`) || !strings.Contains(got["step-1"], "was published") {
		t.Errorf("the states are %v", got)
	}
	once(t, dir, s.url("run"), fast()) // and its objects go
	for _, key := range s.keys() {
		if strings.HasPrefix(key, "run/step-1/"+checkpoint.ManifestName) {
			t.Errorf("%s is there", key)
		}
	}
	publish(t, dir, "step-2", checkpoint.Part{Of: 1}, usual())
	must(t, os.Truncate(filepath.Join(dir, "step-2", "small"), 999))
	if got = once(t, dir, s.url("run"), fast()); !strings.Contains(got["step-2"], "999 bytes") {
		t.Errorf("the states are %v", got)
	}
}

// TestWatch has checkpoints come and go while the store comes and goes.
func TestWatch(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	opt := fast()
	opt.Patience = 0
	d := open(t, dir, s.url("run"), opt)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.Run(ctx) }()
	defer func() { cancel(); <-done }()
	publish(t, dir, "step-1", checkpoint.Part{Of: 1}, usual())
	d.Published("step-1")
	wait(t, d, "step-1", func(state string) bool { return state == Remote })
	down := func(_, _ string, w http.ResponseWriter, _ *http.Request) (bool, func(http.ResponseWriter)) {
		fail(w, http.StatusServiceUnavailable, "SlowDown")
		return true, nil
	}
	s.set(func() { s.before = down })
	publish(t, dir, "step-2", checkpoint.Part{Of: 1}, usual())
	wait(t, d, "step-2", func(state string) bool {
		return strings.HasPrefix(state, "draining: ") && strings.Contains(state, "SlowDown")
	})
	s.set(func() { s.before = nil })
	wait(t, d, "step-2", func(state string) bool { return state == Remote })
	compare(t, s, "run/", dir, "step-2", usual())

	// One that is removed before it is remote leaves nothing there.
	s.set(func() {
		s.before = func(op, key string, w http.ResponseWriter, _ *http.Request) (bool, func(http.ResponseWriter)) {
			if op == "part" && strings.HasSuffix(key, "big") {
				fail(w, http.StatusServiceUnavailable, "SlowDown")
				return true, nil
			}
			return false, nil
		}
	})
	publish(t, dir, "step-3", checkpoint.Part{Of: 1}, usual())
	wait(t, d, "step-3", func(state string) bool { return strings.Contains(state, "SlowDown") })
	must(t, checkpoint.Remove(t.Context(), filepath.Join(dir, "step-3")))
	wait(t, d, "step-3", func(state string) bool { return state == "" })
	s.set(func() { s.before = nil })
	left := ""
	defer func() {
		if t.Failed() {
			t.Logf("what stays: %s", left)
		}
	}()
	until(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		left = fmt.Sprintf("%d uploads", len(s.uploads))
		for key := range s.objects {
			if strings.HasPrefix(key, "run/step-3/") {
				left += " " + key
			}
		}
		return left == "0 uploads"
	})
}

// TestParts has three nodes with a part each.
func TestParts(t *testing.T) {
	s := newStore(t)
	var drains []*Drain
	for i := range 3 {
		dir := t.TempDir()
		publish(t, dir, "step-1", checkpoint.Part{Index: i, Of: 3}, map[string]int{fmt.Sprintf("__%d_0.distcp", i): 9 * mib, "config.json": 100, ".metadata": 10 + i})
		opt := fast()
		opt.Patience = 0
		drains = append(drains, open(t, dir, s.url("run"), opt))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ends sync.WaitGroup
	defer ends.Wait()
	defer cancel()
	start := func(d *Drain) { ends.Go(func() { d.Run(ctx) }) }
	start(drains[0])
	start(drains[1])
	for _, d := range drains[:2] {
		wait(t, d, "step-1", func(state string) bool { return strings.Contains(state, "waits for part 3") })
	}
	if slices.Contains(s.keys(), "run/step-1/"+checkpoint.ManifestName) {
		t.Fatal("two of three parts are a checkpoint")
	}
	start(drains[2])
	for _, d := range drains {
		wait(t, d, "step-1", func(state string) bool { return state == Remote })
	}
	s.mu.Lock()
	text := s.objects["run/step-1/"+checkpoint.ManifestName].data
	s.mu.Unlock()
	m, err := checkpoint.ParseManifest(text)
	must(t, err)
	if m.Part != (checkpoint.Part{Of: 1}) || len(m.Files) != 3+1+3 {
		t.Errorf("the manifest is of part %v, and has %d files", m.Part, len(m.Files))
	}
	dir := t.TempDir() // what is there is a checkpoint, by itself
	s.mu.Lock()
	for key, o := range s.objects {
		if name, ok := strings.CutPrefix(key, "run/step-1/"); ok {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, "step-1", name)), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "step-1", name), o.data, 0o644))
		}
	}
	s.mu.Unlock()
	report, err := checkpoint.Verify(t.Context(), filepath.Join(dir, "step-1"), checkpoint.VerifyOptions{})
	must(t, err)
	if report.Damaged != 0 || report.Files != 7 {
		t.Errorf("the report is %+v", report)
	}
	until(t, func() bool {
		for _, key := range s.keys() {
			if strings.Contains(key, StateName+"/") {
				return false
			}
		}
		return true
	})
}

// TestPartsOfTwoAttempts has a node whose part of an earlier attempt is still at the destination, when the other node sends that of the next
// one. They never become one checkpoint.
func TestPartsOfTwoAttempts(t *testing.T) {
	s, dirs := newStore(t), []string{t.TempDir(), t.TempDir()}
	part := func(i, attempt int) {
		publish(t, dirs[i], "step-1", checkpoint.Part{Index: i, Of: 2}, map[string]int{fmt.Sprintf("__%d_0.distcp", i): 1000 + attempt, "config.json": 100})
	}
	opt := fast()
	opt.Patience = 300 * time.Millisecond
	part(0, 1)
	once(t, dirs[0], s.url("run"), opt) // and nobody drains there for a while
	must(t, checkpoint.Remove(t.Context(), filepath.Join(dirs[0], "step-1")))
	part(0, 2)
	part(1, 2)
	if got := once(t, dirs[1], s.url("run"), opt); !strings.Contains(got["step-1"], "the word of the nodes of 0-of-2") {
		t.Fatalf("the second node has %v", got)
	}
	var both sync.WaitGroup
	opt.Patience = fast().Patience
	for _, dir := range dirs {
		both.Go(func() {
			if got := once(t, dir, s.url("run"), opt); got["step-1"] != Remote {
				t.Errorf("the states are %v", got)
			}
		})
	}
	both.Wait()
	m, err := checkpoint.ParseManifest(s.objects["run/step-1/"+checkpoint.ManifestName].data)
	must(t, err)
	for _, f := range m.Files {
		if o := s.objects["run/step-1/"+f.Name]; o == nil || int64(len(o.data)) != f.Size || crc32.Checksum(o.data, crc32.MakeTable(crc32.Castagnoli)) != f.Sums[0] || f.Size == 1001 {
			t.Errorf("file %q of the checkpoint is %+v", f.Name, o)
		}
	}
}

// TestFullDisk drains a directory whose disk is full: the journals cannot be written then.
func TestFullDisk(t *testing.T) {
	blackbox.NeedRoot(t)
	s, dir := newStore(t), t.TempDir()
	must(t, unix.Mount("none", dir, "tmpfs", 0, "size=48m"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	publish(t, dir, "step-1", checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	once(t, dir, s.url("run"), fast())
	publish(t, dir, "step-2", checkpoint.Part{Of: 1}, map[string]int{"big": 20 * mib, "small": 17})
	fill, err := os.Create(filepath.Join(dir, "fill"))
	must(t, err)
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	must(t, fill.Close())
	opt := fast()
	opt.Keep = 1
	if got := once(t, dir, s.url("run"), opt); got["step-2"] != Remote {
		t.Errorf("the states are %v", got)
	}
	compare(t, s, "run/", dir, "step-2", map[string]int{"big": 20 * mib, "small": 17})
	if _, err := os.Stat(filepath.Join(dir, "step-1")); err == nil {
		t.Error("step-1 is remote, beyond --keep, and still here")
	}
}
