package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/aside"
)

// topMount is a mount of this machine: where it is seen, the place that shows it whole first.
type topMount struct {
	device string // the superblock: bind mounts of one have the same
	points []string
	whole  bool // the first point shows the root of the mount, where the status is
}

// findMounts lists the hbmfs mounts that this process sees. What another mount hides is left out.
func findMounts() ([]topMount, error) {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return mountsIn(all), nil
}

func mountsIn(all []*mountinfo.Info) []topMount {
	seen := fs.Uppermost(all)
	byDevice := map[string]*topMount{}
	for _, i := range all {
		if i.FSType != "fuse.hbmfs" || seen[i.Mountpoint] != i {
			continue
		}
		device := fmt.Sprintf("%d:%d", i.Major, i.Minor)
		m := byDevice[device]
		if m == nil {
			m = &topMount{device: device}
			byDevice[device] = m
		}
		if i.Root == "/" && !m.whole {
			m.points, m.whole = slices.Insert(m.points, 0, i.Mountpoint), true
		} else {
			m.points = append(m.points, i.Mountpoint)
		}
	}
	mounts := make([]topMount, 0, len(byDevice))
	for _, m := range byDevice {
		mounts = append(mounts, *m)
	}
	slices.SortFunc(mounts, func(a, b topMount) int {
		return cmp.Or(cmp.Compare(a.points[0], b.points[0]), cmp.Compare(a.device, b.device))
	})
	return mounts
}

// sampler asks mounts for a file of .hbmfs. One goroutine uses it.
type sampler struct {
	file  string
	asker aside.Asker
}

func newSampler(file string, patience time.Duration) *sampler {
	return &sampler{file, aside.Asker{Program: self(), Patience: patience}}
}

// mountSample is what a mount said, and when.
type mountSample struct {
	topMount
	aside.Answer
	at time.Time
}

// sample asks all mounts at once and returns when each has answered, or patience is over.
func (s *sampler) sample(ctx context.Context) ([]mountSample, error) {
	mounts, err := findMounts()
	if err != nil {
		return nil, err
	}
	samples := make([]mountSample, len(mounts))
	var asked sync.WaitGroup
	for i, m := range mounts {
		asked.Go(func() { samples[i] = mountSample{m, s.ask(ctx, m), time.Now()} })
	}
	asked.Wait()
	return samples, ctx.Err()
}

func (s *sampler) ask(ctx context.Context, m topMount) aside.Answer {
	if !m.whole {
		return aside.Answer{State: aside.Unreadable, Error: "only a part of it is mounted here, and the status is in its root"}
	}
	return s.asker.Ask(ctx, m.device, filepath.Join(m.points[0], fs.ControlName, s.file))
}
