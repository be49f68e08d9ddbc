package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestSoak writes, publishes, reads, verifies and removes checkpoints for HBMFS_SOAK (10 s otherwise), while the daemon is killed at random: mostly after
// a second or two, at times after a minute. Neither daemons nor their keeper may grow.
func TestSoak(t *testing.T) {
	v := mount(t)
	length := 10 * time.Second
	if text := os.Getenv("HBMFS_SOAK"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		blackbox.Must(t, err)
	}
	end := time.Now().Add(length)
	seed := blackbox.Seed(t)
	lives := rand.New(rand.NewPCG(seed, 3)) // the workers have 0 to 2
	var published, dropped, busy, kills atomic.Int64
	before := descriptors(t, v)
	var workers sync.WaitGroup
	for w := range 3 {
		workers.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			for i := 0; time.Now().Before(end) && !t.Failed(); i++ {
				outcome, err := oneCheckpoint(v, fmt.Sprintf("w%d-%d", w, i), rnd)
				if err != nil {
					t.Errorf("seed %d, writer %d, checkpoint %d: %v", seed, w, i, err)
					return
				}
				if w == 0 { // as DeepSpeed does
					latest, tag := v.Path("latest"), fmt.Sprint("step ", i)
					err := os.WriteFile(latest, []byte(tag), 0o644)
					if text, readErr := os.ReadFile(latest); err != nil || readErr != nil || string(text) != tag {
						t.Errorf("latest has %q: %v", text, errors.Join(err, readErr))
					}
				}
				map[string]*atomic.Int64{"published": &published, "dropped": &dropped, "busy": &busy}[outcome].Add(1)
			}
		})
	}
	var sizes []footprint
	for time.Now().Before(end) && !t.Failed() {
		life := 500*time.Millisecond + time.Duration(lives.Int64N(int64(2*time.Second)))
		if length > 5*time.Minute && lives.IntN(20) == 0 {
			life = time.Minute
		}
		for over := time.Now().Add(min(time.Until(end), life)); time.Now().Before(over) && !t.Failed(); {
			time.Sleep(min(time.Until(over), 5*time.Second))
			sizes = append(sizes, measure(t, v))
		}
		if time.Now().Before(end) {
			v.Kill(t)
			kills.Add(1)
		}
	}
	workers.Wait()
	flat(t, sizes)
	volumetest.Want(t, "remove the side file", os.Remove(v.Path("latest")), 0)
	t.Logf("published %d, dropped %d, refused and then published %d, daemons killed %d", published.Load(), dropped.Load(), busy.Load(), kills.Load())
	if names := volumetest.Listed(t, v.Point); len(names) != 0 {
		t.Errorf("%q are left", names)
	}
	v.Kill(t) // the next daemon removes what the last one was about to remove
	if !blackbox.Within(volumetest.Patience, func() bool { return len(volumetest.Listed(t, v.Dir)) == 0 }) {
		t.Errorf("%q are left in the directory", volumetest.Listed(t, v.Dir))
	}
	if t.Failed() {
		text, _ := os.ReadFile(v.Log) // nothing, if there is none
		t.Logf("%s", text[max(0, len(text)-20000):])
	}
	if after := descriptors(t, v); after > before+40 {
		t.Errorf("the daemon has %d open files, and had %d", after, before)
	}
}

// footprint is what a daemon and its keeper take: memory in kB, open files.
type footprint [4]int

// measure looks at both. What has just been killed has none.
func measure(t *testing.T, v *volumetest.Volume) (f footprint) {
	s := v.State(t)
	for i, pid := range []int{s.PID, s.Handover.PID} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		files, filesErr := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if _, after, ok := strings.Cut(string(text), "\nVmRSS:"); ok && err == nil && filesErr == nil {
			_, _ = fmt.Sscan(after, &f[2*i])
			f[2*i+1] = len(files)
		}
	}
	return f
}

// flat compares the second quarter of a soak with its last.
func flat(t *testing.T, all []footprint) {
	t.Helper()
	median := func(part []footprint, i int) int {
		var values []int
		for _, f := range part {
			values = append(values, f[i])
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	n := len(all)
	if n < 8 {
		return
	}
	for i, name := range []string{"the daemon's memory, kB", "the daemon's open files", "its keeper's memory, kB", "its keeper's open files"} {
		early, late := median(all[n/4:n/2], i), median(all[3*n/4:], i)
		t.Logf("%s: %d in the second quarter, %d in the last", name, early, late)
		if late > early+early/2+8 {
			t.Errorf("%s grows from %d to %d", name, early, late)
		}
	}
}

func descriptors(t *testing.T, v *volumetest.Volume) int {
	t.Helper()
	return len(volumetest.Listed(t, fmt.Sprintf("/proc/%d/fd", v.PID(t))))
}

// oneCheckpoint writes one, publishes it, compares it and removes it.
func oneCheckpoint(v *volumetest.Volume, name string, rnd *rand.Rand) (outcome string, err error) {
	draft := v.Path(name + ".tmp")
	if err := os.Mkdir(draft, 0o755); err != nil {
		return "", err
	}
	files := map[string][]byte{}
	for i := range 1 + rnd.IntN(12) {
		file := fmt.Sprintf("d%d/f%d", i%3, i)
		files[file] = bytes.Repeat([]byte{byte(i), byte(rnd.Uint32())}, rnd.IntN(200<<10))
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(draft, file)), 0o755), os.WriteFile(filepath.Join(draft, file), files[file], 0o644)); err != nil {
			return "", err
		}
	}
	outcome = "published"
	switch rnd.IntN(6) {
	case 0:
		return "dropped", os.RemoveAll(draft)
	case 1:
		f, err := os.OpenFile(filepath.Join(draft, "d0/f0"), os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		if err := v.Publish(name); !errors.Is(err, unix.EBUSY) {
			return "", fmt.Errorf("a draft that is being written was published: %w", err)
		}
		if err := f.Close(); err != nil {
			return "", err
		}
		outcome = "busy"
	}
	if err := v.Publish(name); err != nil {
		return "", err
	}
	for file, want := range files {
		got, err := os.ReadFile(v.Path(name, file))
		if err != nil || !bytes.Equal(got, want) {
			return "", fmt.Errorf("%s differs: %w", file, err)
		}
		if f, err := os.OpenFile(v.Path(name, file), os.O_RDWR, 0); err == nil {
			return "", errors.Join(fmt.Errorf("%s was opened for writing", file), f.Close())
		}
	}
	report, err := checkpoint.Verify(context.Background(), filepath.Join(v.Dir, name), checkpoint.VerifyOptions{Threads: 1})
	if err != nil || report.Damaged > 0 {
		return "", fmt.Errorf("verify: %w %+v", err, report)
	}
	return outcome, os.Remove(v.Path(name))
}
