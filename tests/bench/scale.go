package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// scaleRuns is enough for a median: each run mounts and walks everything.
const scaleRuns = 5

// scale mounts very many shards: time to mount, to walk, to open a view over all of them, and memory.
func (b *bench) scale(ctx context.Context) error {
	dirs, err := b.makeDirs("many", "mnt")
	if err != nil {
		return err
	}
	many, mnt := dirs[0], dirs[1]
	progress("scale: writing %d sparse shards of 1 MiB", b.shards)
	if err := writeSparseShards(ctx, many, b.shards, 1<<20); err != nil {
		return err
	}
	var runs []scaleRun
	for i := range scaleRuns {
		progress("scale: run %d of %d", i+1, scaleRuns)
		run, err := b.scaleOnce(ctx, many, mnt)
		if err != nil {
			return err
		}
		runs = append(runs, run)
	}
	column := func(pick func(scaleRun) float64) spread {
		values := make([]float64, 0, len(runs))
		for _, r := range runs {
			values = append(values, pick(r))
		}
		return newSpread(values)
	}
	name := func(what string) string { return fmt.Sprintf("%s, %d shards", what, b.shards) }
	b.report.Limits = append(b.report.Limits,
		limit{name("mount"), "s", column(func(r scaleRun) float64 { return r.mount }), 1},
		limit{name("find -type f"), "s", column(func(r scaleRun) float64 { return r.find }), 2},
		limit{name("find -size (a stat of each)"), "s", column(func(r scaleRun) float64 { return r.findStat }), 0},
		limit{name("formats recognized (in the background), after the start"), "s", column(func(r scaleRun) float64 { return r.recognized }), 0},
		limit{name("view over all, open and first read"), "s", column(func(r scaleRun) float64 { return r.view }), 0.1},
		limit{name("daemon memory after all of it"), "MiB", column(func(r scaleRun) float64 { return r.rss }), 250},
		limit{name("daemon memory at its highest"), "MiB", column(func(r scaleRun) float64 { return r.peak }), 250},
	)
	return removeAll(many)
}

// scaleRun is one mount of the dataset: seconds, and MiB of the daemon.
type scaleRun struct{ mount, find, findStat, recognized, view, rss, peak float64 }

func (b *bench) scaleOnce(ctx context.Context, source, mnt string) (run scaleRun, err error) {
	start := time.Now()
	m, err := b.mount(ctx, source, mnt)
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	run.mount = time.Since(start).Seconds()

	if run.find, err = b.timeFind(ctx, mnt, "-type", "f"); err != nil {
		return run, err
	}
	if run.findStat, err = b.timeFind(ctx, mnt, "-type", "f", "-size", "+0"); err != nil {
		return run, err
	}
	if run.recognized, err = timeRecognition(ctx, m, start); err != nil {
		return run, err
	}
	if run.view, err = timeView(m); err != nil {
		return run, err
	}
	run.rss, run.peak, err = daemonMemory(m)
	return run, err
}

// timeFind runs find and checks that it saw every shard: a fast walk of half the files is none.
func (b *bench) timeFind(ctx context.Context, dir string, tests ...string) (float64, error) {
	start := time.Now()
	out, err := exec.CommandContext(ctx, "find", append([]string{dir}, tests...)...).Output()
	seconds := time.Since(start).Seconds()
	if err != nil {
		return 0, fmt.Errorf("find: %w", err)
	}
	if found := bytes.Count(out, []byte("\n")); found != b.shards {
		return 0, fmt.Errorf("find saw %d files, want %d", found, b.shards)
	}
	return seconds, nil
}

// timeRecognition waits until the mount knows its formats, and returns the seconds since start. The files can be read
// meanwhile; the views come with it.
func timeRecognition(ctx context.Context, m *blackbox.Mount, start time.Time) (float64, error) {
	for {
		data, err := os.ReadFile(m.Path(".hbmfs", "status"))
		if err != nil {
			return 0, fmt.Errorf("read the status: %w", err)
		}
		var status struct {
			Indexing bool `json:"indexing"`
		}
		if err := json.Unmarshal(data, &status); err != nil {
			return 0, fmt.Errorf("read the status: %w", err)
		}
		if !status.Indexing {
			return time.Since(start).Seconds(), nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// timeView opens tokens.npy and reads its first page. Finding the view's path counts: a user needs it, too.
func timeView(m *blackbox.Mount) (float64, error) {
	start := time.Now()
	path, err := m.View("tokens.npy")
	if err != nil {
		return 0, err
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open the view: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	if _, err := f.ReadAt(make([]byte, 4096), 0); err != nil {
		return 0, fmt.Errorf("read the view: %w", err)
	}
	return time.Since(start).Seconds(), nil
}

// daemonMemory returns resident MiB, now and at their highest (source: proc_pid_status(5), VmRSS and VmHWM).
func daemonMemory(m *blackbox.Mount) (now, peak float64, err error) {
	pid, err := m.DaemonPID()
	if err != nil {
		return 0, 0, err
	}
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, 0, fmt.Errorf("read the daemon's memory: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "VmRSS:":
			now = kib / 1024
		case "VmHWM:":
			peak = kib / 1024
		}
	}
	if now == 0 || peak == 0 {
		return 0, 0, errors.New("read the daemon's memory: the kernel shows none")
	}
	return now, peak, nil
}

// pieces mounts the Pile as Pythia's authors ship it: sparse, but of its real sizes.
func (b *bench) pieces(ctx context.Context) error {
	dirs, err := b.makeDirs("pile", "mnt")
	if err != nil {
		return err
	}
	pile, mnt := dirs[0], dirs[1]
	progress("pieces: writing %d sparse pieces", fullPieces+1)
	if err := writePieces(ctx, pile); err != nil {
		return err
	}
	var times []float64
	for range scaleRuns {
		start := time.Now()
		m, err := b.mount(ctx, pile, mnt)
		if err != nil {
			return err
		}
		times = append(times, time.Since(start).Seconds())
		if err := errors.Join(checkPieces(m), m.Close()); err != nil {
			return err
		}
	}
	b.report.Limits = append(b.report.Limits, limit{
		fmt.Sprintf("mount, Pythia's %d pieces of 5,000,000,000 bytes", fullPieces), "s", newSpread(times), 1,
	})
	return removeAll(pile)
}

// checkPieces makes sure that the mount whose time was taken shows the one file that the index expects.
func checkPieces(m *blackbox.Mount) error {
	path, err := m.View("document.bin")
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("check the pieces: %w", err)
	}
	if want := int64(fullPieces*pieceBytes + lastPieceBytes); info.Size() != want {
		return fmt.Errorf("check the pieces: document.bin has %d bytes, want %d", info.Size(), want)
	}
	return nil
}

// removeAll frees the disk before the next case.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove a dataset: %w", err)
	}
	return nil
}
