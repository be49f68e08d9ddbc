package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

const (
	samples  = 1000
	sample   = 16 << 10 // bytes: 8,192 tokens of two
	soon     = 5 * time.Millisecond
	replayed = "16MiB" // segments of the nodes' caches
)

// replays has a job read samples at random and be recorded. Then jobs on other nodes read: the same samples from a cold cache, and after
// a replay; and others after a replay.
func (b *bench) replays(ctx context.Context) error {
	record := filepath.Join(b.dir, "record")
	fmt.Printf("%.2f GB, origin %.0f MB/s and %v, %d samples of %d KiB, segments of %s\n\n| job | replay | samples within %v | median | p99 |\n|---|---|---|---|---|\n",
		float64(b.size)/1e9, b.rate/1e6, b.latency, samples, sample>>10, replayed, soon)
	for i, job := range []struct {
		name   string
		seed   uint64
		replay bool
	}{{"first, recorded", 1, false}, {"second, cold", 1, false}, {"second, replayed", 1, true}, {"other samples, replayed", 2, true}} {
		dir := filepath.Join(b.dir, fmt.Sprint("job-", i))
		point, end, err := b.mount(ctx, dir, nil, i, "--cache-segment", replayed)
		if err != nil {
			return err
		}
		replay := "-"
		if job.replay {
			began := time.Now()
			if out, err := exec.CommandContext(ctx, b.hbmfs, "warm", "--replay", record, point).CombinedOutput(); err != nil {
				return errors.Join(fmt.Errorf("replay: %w: %s", err, out), end())
			}
			replay = fmt.Sprintf("%.1f s", time.Since(began).Seconds())
		}
		times, err := b.random(ctx, point, job.seed)
		if err == nil && i == 0 {
			err = exec.CommandContext(ctx, b.hbmfs, "warm", "--record", record, point).Run()
		}
		if err = errors.Join(err, end(), os.RemoveAll(dir)); err != nil {
			return err
		}
		slices.Sort(times)
		within, _ := slices.BinarySearch(times, soon)
		fmt.Printf("| %s | %s | %.3f | %.2f ms | %.2f ms |\n", job.name, replay, float64(within)/samples, ms(times[samples/2]), ms(times[samples*99/100]))
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// random reads samples at random, one after the other, and gives the time of each.
func (b *bench) random(ctx context.Context, point string, seed uint64) (times []time.Duration, err error) {
	random, buf := rand.New(rand.NewPCG(seed, seed)), make([]byte, sample)
	for range samples {
		name := filepath.Join(point, fmt.Sprintf("train-%03d.bin", random.IntN(b.files)))
		off := random.Int64N(b.size/int64(b.files)/sample) * sample
		began := time.Now()
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		if _, err = f.ReadAt(buf, off); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		times = append(times, time.Since(began))
		if err := errors.Join(f.Close(), ctx.Err()); err != nil {
			return nil, err
		}
	}
	return times, nil
}
