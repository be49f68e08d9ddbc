package cufile_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	le "encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

const manyShards = 5000 // more than the extents that a reader keeps at once

// llmcShard makes a shard of llm.c of so many random tokens.
func llmcShard(t *testing.T, tokens int, seed byte) []byte {
	t.Helper()
	shard := make([]byte, 1024+2*tokens)
	for k, v := range []uint32{20240520, 1, uint32(tokens)} {
		le.LittleEndian.PutUint32(shard[4*k:], v)
	}
	if _, err := rand.NewChaCha8([32]byte{9, seed}).Read(shard[1024:]); err != nil {
		t.Fatal(err)
	}
	return shard
}

// manyShardsView mounts tiny llm.c shards, of which so many are files of their own, and gives their one view and its bytes.
func manyShardsView(t *testing.T, files int, flags ...string) (hbmfs string, m *blackbox.Mount, view string, data []byte) {
	t.Helper()
	blackbox.NeedRoot(t)
	b := blackbox.Given(t)
	hbmfs = b.Path()
	dir, data := linkedShards(t, manyShards, files)
	m, err := b.Mount(t.Context(), dir, t.TempDir(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if view, err = m.View("tokens.bin"); err != nil {
		t.Fatal(err)
	}
	return hbmfs, m, view, data
}

// A view of more shards than the process may open files.
func TestReadAViewOfMoreShardsThanDescriptors(t *testing.T) {
	hbmfs, _, view, data := manyShardsView(t, 600)
	gpu := blackbox.FakeGPU(t)
	t.Setenv("FAKE_CUFILE_MOVED", "nvfs")
	want := sha256.Sum256(data)
	for _, path := range []string{"host", "staged", "mapped", "compat"} {
		t.Run(path, func(t *testing.T) {
			args := append([]string{"-c", `ulimit -n 256; exec "$@"`, "sh", hbmfs, "read", "--require", path, "--json"}, gpu...)
			cmd := exec.CommandContext(t.Context(), "sh", append(args, view)...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			var r readResult
			if err != nil || json.Unmarshal(out, &r) != nil {
				t.Fatalf("%v: %s%s", err, stderr.String(), out)
			}
			if r.SHA256 != hex.EncodeToString(want[:]) || r.Paths[path] != int64(len(data)) {
				t.Errorf("%+v, want %d bytes by %s with sha256 %x", r, len(data), path, want)
			}
		})
	}
}

// descriptors counts what this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Error(err)
	}
	return len(list)
}

func TestReaderKeepsFewDescriptors(t *testing.T) {
	_, m, view, data := manyShardsView(t, 600)
	gpu := blackbox.FakeGPU(t)
	libraries := cufile.Libraries{CUDA: gpu[1], CuFile: gpu[3], NVML: gpu[5]}
	for _, o := range []cufile.Options{
		{Path: cufile.Host, Device: cufile.HostDevice},
		{Path: cufile.Staged, Libraries: libraries},
		{Path: cufile.Mapped, Libraries: libraries},
	} {
		t.Run(string(o.Path), func(t *testing.T) {
			const bound = 16
			o.Descriptors, o.Arena, o.Slot, o.Threads = bound, 4<<20, 64<<10, 2
			r, err := cufile.New(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			var files []*cufile.File // which share the bound
			for range 2 {
				f, err := r.Open(t.Context(), view)
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, f)
			}
			before := descriptors(t)
			most := watch(t, func() {
				for _, f := range files {
					readSpan(t, f, data, f.Size()/2, 300) // of its extents alone; what follows needs all
				}
				for i, f := range files {
					readSpan(t, f, data, 0, f.Size()>>(3*i)) // all by one of them
					gatherSome(t, f, data)
				}
			})
			// Descriptors on their way to us come once more, and the count itself has one open.
			if most > before+bound+8 {
				t.Errorf("%d descriptors were open, %d before: more than %d for backing files", most, before, bound)
			}
			if n := leases(t, m, bound); n == 0 || n > bound {
				t.Errorf("%d leases held, want 1 to %d", n, bound)
			}
			if err := closed(files[0], files[1], r); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTwoReadersHaveOneDescriptorOfAFile reads the same view by two readers. One closes, and the other reads on.
func TestTwoReadersHaveOneDescriptorOfAFile(t *testing.T) {
	_, _, view, data := manyShardsView(t, 1500)
	counts := []int{descriptors(t)}
	var readers []*cufile.Reader
	var files []*cufile.File
	for range 2 {
		r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Descriptors: 4096, Arena: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		f, err := r.Open(t.Context(), view)
		if err != nil {
			t.Fatal(err)
		}
		readers, files = append(readers, r), append(files, f)
		readSpan(t, f, data, 0, f.Size())
		counts = append(counts, descriptors(t))
	}
	if one := counts[1] - counts[0]; one < 1000 || counts[2]-counts[1] > one/10 {
		t.Errorf("%v descriptors before, with one reader, and with two", counts)
	}
	if err := closed(files[0], readers[0]); err != nil {
		t.Error(err)
	}
	readSpan(t, files[1], data, 0, files[1].Size())
	gatherSome(t, files[1], data)
	if err := closed(files[1], readers[1]); err != nil {
		t.Error(err)
	}
	if n := descriptors(t); n > counts[0]+8 {
		t.Errorf("%d descriptors in the end, %d in the beginning", n, counts[0])
	}
}

// closed closes files and readers. On a busy machine a step may take longer than Close waits.
func closed(all ...io.Closer) error {
	var errs []error
	for _, c := range all {
		var err error
		blackbox.Within(2*time.Minute, func() bool { err = c.Close(); return !errors.Is(err, cufile.ErrUnderWay) })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// watch gives the most descriptors that were open while do ran.
func watch(t *testing.T, do func()) (most int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		most := 0
		for ctx.Err() == nil {
			most = max(most, descriptors(t)) // the kernel lists thousands, which takes CPU time
			time.Sleep(5 * time.Millisecond)
		}
		done <- most
	}()
	do()
	cancel()
	return <-done
}

// Readers of one process want more descriptors than it has. They leave some to the process; a view that needs more is read through the mount.
func TestReadersOfAProcessShareItsDescriptors(t *testing.T) {
	const limit = 4096
	_, m, view, data := manyShardsView(t, manyShards)
	names := make([]string, 1500) // three readers have more than the limit
	for i := range names {
		names[i] = m.Path(fmt.Sprintf("fineweb_train_%06d.bin", i))
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil || before.Max < limit {
		t.Skipf("this process may have %d descriptors: %v", before.Max, err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }() // it was the limit
	for kind, open := range map[string]func(*cufile.Reader) ([]*cufile.File, error){
		"a view": func(r *cufile.Reader) ([]*cufile.File, error) {
			f, err := r.Open(t.Context(), view)
			return []*cufile.File{f}, err
		},
		"files": func(r *cufile.Reader) ([]*cufile.File, error) {
			files, errs := r.OpenMany(t.Context(), names)
			return files, errors.Join(errs...)
		},
	} {
		var readers []*cufile.Reader
		inMount := 0
		most := watch(t, func() {
			for range 3 {
				r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Descriptors: limit})
				if err != nil {
					t.Fatal(err)
				}
				readers = append(readers, r)
				files, err := open(r)
				if err != nil {
					t.Fatal(err)
				}
				at, header := int64(0), int64(0)
				if len(files) > 1 {
					header = 1024
				}
				for _, f := range files {
					n := f.Size() - header
					v, err := f.Read(t.Context(), header, n)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(v.Bytes(), data[at:at+n]) {
						t.Fatalf("wrong bytes in %d at %d", n, at)
					}
					if strings.Contains(v.Choice().Why, "through the mount") {
						inMount++
					}
					v.Release()
					at += n
				}
			}
		})
		t.Logf("%s: at most %d descriptors, %d reads through the mount", kind, most, inMount)
		if most > limit*3/4 || (inMount > 0) != (kind == "a view") { // files need few at a time
			t.Errorf("%s: at most %d descriptors of %d, %d reads through the mount", kind, most, limit, inMount)
		}
		for _, r := range readers {
			if err := closed(r); err != nil {
				t.Error(err)
			}
		}
	}
}

func readSpan(t *testing.T, f *cufile.File, data []byte, offset, n int64) {
	t.Helper()
	v, err := f.Read(t.Context(), offset, n)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	got := make([]byte, v.Len())
	if err := v.CopyTo(t.Context(), got, 0); err != nil || !bytes.Equal(got, data[offset:offset+n]) {
		t.Errorf("wrong bytes in %d at %d, %v", n, offset, err)
	}
}

func gatherSome(t *testing.T, f *cufile.File, data []byte) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var want []byte
		offsets := make([]int64, 30)
		for i := range offsets {
			offsets[i] = random.Int64N(f.Size() - 50)
			want = append(want, data[offsets[i]:offsets[i]+50]...)
		}
		v, err := f.Gather(t.Context(), offsets, 50)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, v.Len())
		if err := v.CopyTo(t.Context(), got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("wrong bytes, %v", err)
		}
		v.Release()
	}
}

// leases is how many backing files the daemon holds for its readers. They hear of it a moment after a release.
func leases(t *testing.T, m *blackbox.Mount, bound int) (n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		metrics, err := os.ReadFile(m.Path(".hbmfs", "metrics"))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok := strings.Cut(string(metrics), "\nhbmfs_control_leases ")
		if _, err := fmt.Sscan(rest, &n); err != nil || !ok {
			t.Fatalf("no leases in the metrics: %v\n%s", err, metrics)
		}
		if n <= bound || time.Now().After(end) {
			return n
		}
	}
}

// A daemon that goes takes nothing from what is open, and is named where there is no more.
func TestReadAfterTheDaemonWent(t *testing.T) {
	_, m, view, data := manyShardsView(t, 600, "--no-keeper")
	r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Descriptors: 16})
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Open(t.Context(), view)
	if err != nil {
		t.Fatal(err)
	}
	readSpan(t, f, data, f.Size()/2, f.Size()-f.Size()/2) // the host maps what it reads: the first half stays closed
	pid, err := m.DaemonPID()
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !blackbox.Within(time.Minute, func() bool { return blackbox.Ended(pid) }) {
		t.Fatal("the daemon does not end")
	}
	readSpan(t, f, data, f.Size()-20, 20) // what is open
	_, err = f.Read(t.Context(), 0, 1000)
	if !errors.Is(err, control.ErrStale) || strings.Contains(err.Error(), "\n") {
		t.Errorf("read what is not open: %v, want one sentence about the daemon", err)
	}
	if err := closed(f, r); err != nil {
		t.Error(err)
	}
}

// A daemon that is replaced takes nothing from readers: they ask the next one, for what is not open, too.
func TestReadAfterAHandover(t *testing.T) {
	_, m, view, data := manyShardsView(t, 600)
	r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Descriptors: 16})
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Open(t.Context(), view)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 40 { // more than may be open
		names = append(names, m.Path(fmt.Sprintf("fineweb_train_%06d.bin", i)))
	}
	many, errs := r.OpenMany(t.Context(), names)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		readSpan(t, f, data, 0, f.Size())
		text, err := os.ReadFile(m.Path(".hbmfs", "status"))
		var is struct {
			PID      int
			Handover struct{ Holder string }
		}
		if err = errors.Join(err, json.Unmarshal(text, &is)); err != nil {
			t.Fatal(err)
		}
		if is.Handover.Holder == "" {
			t.Skip("nobody holds the mount")
		}
		if err := syscall.Kill(is.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		readSpan(t, f, data, 0, f.Size())
		for i, one := range many {
			v, err := one.Read(t.Context(), 1024, 20)
			if err != nil {
				t.Fatalf("file %d of a batch: %v", i, err)
			}
			v.Release()
		}
	}
	for _, one := range many {
		err = errors.Join(err, closed(one))
	}
	if err := errors.Join(err, closed(f, r)); err != nil {
		t.Error(err)
	}
}
