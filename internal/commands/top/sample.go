// Package top samples the mounts of this machine and compares samples: rates by path, by reader, by origin and cache.
package top

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
	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// Mount is a mount of this machine: where it is seen, the place that shows it whole first.
type Mount struct {
	Device string // the superblock: bind mounts of one have the same
	Points []string
	Whole  bool // the first point shows the root of the mount, where the status is
}

// findMounts lists the hbmfs mounts that this process sees. Mounts that another one hides are left out.
func findMounts() ([]Mount, error) {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return mountsIn(all), nil
}

func mountsIn(all []*mountinfo.Info) []Mount {
	seen := fs.Uppermost(all)
	byDevice := map[string]*Mount{}
	for _, i := range all {
		if i.FSType != "fuse.hbmfs" || seen[i.Mountpoint] != i {
			continue
		}
		device := fmt.Sprintf("%d:%d", i.Major, i.Minor)
		m := byDevice[device]
		if m == nil {
			m = &Mount{Device: device}
			byDevice[device] = m
		}
		if i.Root == "/" && !m.Whole {
			m.Points, m.Whole = slices.Insert(m.Points, 0, i.Mountpoint), true
		} else {
			m.Points = append(m.Points, i.Mountpoint)
		}
	}
	mounts := make([]Mount, 0, len(byDevice))
	for _, m := range byDevice {
		mounts = append(mounts, *m)
	}
	slices.SortFunc(mounts, func(a, b Mount) int {
		return cmp.Or(cmp.Compare(a.Points[0], b.Points[0]), cmp.Compare(a.Device, b.Device))
	})
	return mounts
}

// Sampler asks mounts for a file of .hbmfs. One goroutine uses it.
type Sampler struct {
	file  string
	asker aside.Asker
}

// NewSampler has program, an hbmfs binary, ask for a file.
func NewSampler(program, file string, patience time.Duration) *Sampler {
	return &Sampler{file, aside.Asker{Program: program, Patience: patience}}
}

// Sample is the answer of a mount, and its time.
type Sample struct {
	Mount
	aside.Answer
	At time.Time
}

// Sample asks all mounts at once and returns when each has answered, or patience is over.
func (s *Sampler) Sample(ctx context.Context) ([]Sample, error) {
	mounts, err := findMounts()
	if err != nil {
		return nil, err
	}
	samples := make([]Sample, len(mounts))
	var asked sync.WaitGroup
	for i, m := range mounts {
		asked.Go(func() { samples[i] = Sample{m, s.ask(ctx, m), time.Now()} })
	}
	asked.Wait()
	return samples, ctx.Err()
}

func (s *Sampler) ask(ctx context.Context, m Mount) aside.Answer {
	if !m.Whole {
		return aside.Answer{State: aside.Unreadable, Error: "only a part of it is mounted here, and the status is in its root"}
	}
	return s.asker.Ask(ctx, m.Device, filepath.Join(m.Points[0], fs.ControlName, s.file))
}
