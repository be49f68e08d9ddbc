package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs"
)

// topAsideName is the hidden command that reads a file of a mount.
const topAsideName = "top-aside"

// answerLimit bounds what is read of a status: one of a thousand sets and 64 clients has a tenth.
const answerLimit = 16 << 20

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

// States of a mount.
const (
	stateOK     = "ok"
	stateSilent = "not answering" // its daemon is there and says nothing: stopped, or stuck
	stateDead   = "dead"          // its daemon is gone
	stateUnread = "unreadable"
)

// topAnswer is what a mount said: the text of the file that it was asked for, or why not.
type topAnswer struct {
	State string `json:"state"`
	Error string `json:"error,omitempty"`
	Text  []byte `json:"text,omitempty"`
}

// newTopAsideCommand is what ask runs: whoever looks at a file of a mount with a stuck daemon may wait where not even SIGKILL
// reaches, so a process does it that can be left behind.
func newTopAsideCommand() *cobra.Command {
	return &cobra.Command{
		Use:    topAsideName,
		Hidden: true, // not for people
		Args:   exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(readAnswer(args[0]))
		},
	}
}

func readAnswer(name string) topAnswer {
	text, err := readText(name)
	switch {
	case errors.Is(err, syscall.ENOTCONN), errors.Is(err, syscall.ECONNABORTED):
		return topAnswer{State: stateDead, Error: "its daemon is gone: mount it again, or take it away with hbmfs umount"}
	case err != nil:
		return topAnswer{State: stateUnread, Error: err.Error()}
	}
	return topAnswer{State: stateOK, Text: text}
}

// readText reads a file. A directory has no text, but has to be asked for as well.
func readText(name string) ([]byte, error) {
	var st unix.Statfs_t // unlike stat and open, which the kernel may answer from what it keeps, this asks the daemon
	if err := unix.Statfs(name, &st); err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, answerLimit))
}

// sampler asks mounts for a file of .hbmfs. One goroutine uses it.
type sampler struct {
	file     string
	patience time.Duration
	owed     map[string]<-chan topAnswer // by device: answers that have not come although time was up
}

func newSampler(file string, patience time.Duration) *sampler {
	return &sampler{file, patience, map[string]<-chan topAnswer{}}
}

// mountSample is what a mount said, and when.
type mountSample struct {
	topMount
	topAnswer
	at time.Time
}

// sample asks all mounts at once and returns when each has answered, or patience is over. A mount that still owes an
// answer is not asked again, so that a stuck one collects no processes.
func (s *sampler) sample(ctx context.Context) ([]mountSample, error) {
	mounts, err := findMounts()
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, s.patience+killGrace)
	defer cancel()
	asked := make(map[string]<-chan topAnswer, len(mounts))
	for _, m := range mounts {
		owed := s.owed[m.device]
		if owed != nil && len(owed) == 0 {
			continue
		}
		delete(s.owed, m.device)
		if m.whole {
			asked[m.device] = ask(ctx, filepath.Join(m.points[0], ".hbmfs", s.file), s.patience)
		}
	}
	samples := make([]mountSample, len(mounts))
	for i, m := range mounts {
		samples[i] = mountSample{m, s.await(within, m, asked[m.device]), time.Now()}
	}
	return samples, ctx.Err()
}

// await waits for the answer of a mount, if it was asked.
func (s *sampler) await(ctx context.Context, m topMount, answer <-chan topAnswer) topAnswer {
	silent := topAnswer{State: stateSilent, Error: fmt.Sprintf("its daemon gave no answer within %v: is it stopped or stuck?", s.patience)}
	switch {
	case !m.whole:
		return topAnswer{State: stateUnread, Error: "only a part of it is mounted here, and the status is in its root"}
	case answer == nil:
		return silent
	}
	select {
	case a := <-answer:
		if a.State == stateSilent {
			return silent
		}
		return a
	case <-ctx.Done():
		s.owed[m.device] = answer
		return silent
	}
}

// ask starts this program again to read a file of a mount, or to see whether the daemon of the mount at name answers. The process is killed when it is not done in time; the
// goroutine ends with it, which a stuck daemon can delay.
func ask(ctx context.Context, name string, patience time.Duration) <-chan topAnswer {
	answer := make(chan topAnswer, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		a, err := runTopAside(ctx, name)
		switch {
		case ctx.Err() != nil:
			a = topAnswer{State: stateSilent}
		case err != nil:
			a = topAnswer{State: stateUnread, Error: fmt.Sprintf("reading the status in a process of its own: %v", err)}
		}
		answer <- a
	}()
	return answer
}

// askOnce is ask for whoever asks a mount once, and can leave a process behind that is stuck.
func askOnce(ctx context.Context, name string, patience time.Duration) topAnswer {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if a, ok := settled(ctx, ask(ctx, name, patience)); ok {
		return a
	}
	return topAnswer{State: stateSilent}
}

func runTopAside(ctx context.Context, name string) (a topAnswer, err error) {
	out, err := outputOf(ctx, topAsideName, "--", name)
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(out, &a)
}
