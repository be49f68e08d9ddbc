package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// newVolume opens a volume that nobody has mounted.
func newVolume(t *testing.T, log io.Writer) *Volume {
	t.Helper()
	v, err := Open(t.Context(), t.TempDir(), Options{MaxOpen: 8, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		v.End()
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// newDraft begins a draft with directories in it.
func newDraft(t *testing.T, v *Volume, name string, dirs int) *mountedDraft {
	t.Helper()
	d, err := v.begin(t.Context(), name, checkpoint.Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Mode: 0o755}, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range dirs {
		if err := os.Mkdir(filepath.Join(v.Path(), checkpoint.DraftBase(d.name), fmt.Sprint(i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestPlacesAreBounded: the directories that were used last stay open, and no more; what somebody uses stays open in any case.
func TestPlacesAreBounded(t *testing.T) {
	v := newVolume(t, io.Discard)
	before := openFiles(t)
	d := newDraft(t, v, "step.tmp", 3*mostPlaces)
	nodes := make([]*node, 3*mostPlaces)
	var first *opened
	for i := range nodes {
		n, _, err := v.find(d.root, fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		p, err := n.at()
		if err != nil {
			t.Fatal(err)
		}
		if nodes[i] = n; i == 0 {
			first = p
		} else {
			p.end()
		}
	}
	if n := len(v.placed); n != mostPlaces || nodes[0].place != nil || nodes[len(nodes)-1].place == nil {
		t.Errorf("%d directories are open, want the last %d", n, mostPlaces)
	}
	if st, err := statx(first.fd, ""); err != nil || st.Ino != nodes[0].ino {
		t.Errorf("one that is used was closed: %v", err)
	}
	first.end()
	last := nodes[len(nodes)-1]
	at := filepath.Join(v.Path(), checkpoint.DraftBase("step"))
	if err := os.Rename(filepath.Join(at, last.name), filepath.Join(at, "moved")); err != nil { // past the mount
		t.Fatal(err)
	}
	if st, err := last.stat(); err != nil || st.Ino != last.ino {
		t.Errorf("a directory that was moved past the mount: %v", err)
	}
	if _, err := nodes[0].stat(); err != nil {
		t.Errorf("one that was closed: %v", err)
	}
	v.unnamed(last.ino, d.root, last.name)
	if st, err := last.stat(); err != nil || st.Ino != last.ino { // until the kernel forgets it
		t.Errorf("one that has no name any more: %v", err)
	}
	for _, n := range nodes {
		v.forget(n.ino|outer, 1)
	}
	if len(v.placed) != 0 || openFiles(t) > before+8 { // those of the draft
		t.Errorf("%d directories and %d files are open after the kernel has forgotten all", len(v.placed), openFiles(t)-before)
	}
}

// TestFilesAreBounded: a user who makes files in drafts without end is refused, and others are served. What is removed, forgotten or published makes room.
func TestFilesAreBounded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files have users")
	}
	const greedy, modest, each = 4711, 4712, 20
	var log strings.Builder
	v := newVolume(t, &log)
	v.room.nodes = shares.New(8*each, each, 2)
	begin := func(name string, uid uint32) *mountedDraft {
		t.Helper()
		d, err := v.begin(t.Context(), name, checkpoint.Owner{UID: uid, GID: uid, Mode: 0o755}, "")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	fill := func(d *mountedDraft, what string) (made []*node, err error) {
		for i := range 3 * each {
			req := fuse.MknodIn{InHeader: fuse.InHeader{Caller: fuse.Caller{Owner: fuse.Owner{Uid: d.owner.UID, Gid: d.owner.GID}}}, Mode: unix.S_IFREG | 0o644}
			n, _, err := v.mknod(d.root, fmt.Sprint(what, i), &req)
			if err != nil {
				return made, err
			}
			made = append(made, n)
		}
		return made, nil
	}
	first, second := begin("first.tmp", greedy), begin("second.tmp", greedy)
	made, err := fill(first, "a")
	if !errors.Is(err, unix.EDQUOT) || len(made) != each-2 {
		t.Fatalf("it makes %d files, and then: %v", len(made), err)
	}
	if _, err := fill(second, "a"); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("in another draft: %v", err)
	}
	if _, _, err := v.mkdir(second.root, "dir", &fuse.MkdirIn{InHeader: fuse.InHeader{Caller: fuse.Caller{Owner: fuse.Owner{Uid: greedy}}}, Mode: 0o755}); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("a directory: %v", err)
	}
	if others, err := fill(begin("modest.tmp", modest), "a"); len(others) < each/4 {
		t.Errorf("another user makes %d files, and then: %v", len(others), err)
	}
	if !strings.Contains(log.String(), "publish or remove some") {
		t.Errorf("the log does not say it:\n%s", log.String())
	}
	v.forget(made[0].ino|outer, 1)
	v.forget(made[1].ino|outer, 1)
	if more, err := fill(first, "b"); len(more) != 2 || !errors.Is(err, unix.EDQUOT) {
		t.Errorf("once the kernel has forgotten two: %d, %v", len(more), err)
	}
	if _, _, err := v.find(first.root, "a0"); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("a look at a file that was forgotten: %v", err)
	}
	if _, _, err := v.find(first.root, "a5"); err != nil {
		t.Errorf("a look at a file that is known: %v", err)
	}
	if err := first.publish(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	if n := v.room.nodes.Of(greedy); n != 1 {
		t.Errorf("with an empty draft it has %d files", n)
	}
	if more, _ := fill(second, "c"); len(more) < each/4 {
		t.Errorf("after publishing it makes %d files", len(more))
	}
}

// TestStages: who may change a draft, and which stages follow one another.
func TestStages(t *testing.T) {
	for state, errno := range map[stage]error{open: nil, sealing: unix.EBUSY, published: unix.EROFS, dropped: unix.ESTALE} {
		d := &mountedDraft{state: state}
		end, err := d.change()
		if !errors.Is(err, errno) {
			t.Errorf("a change in stage %d: %v", state, err)
		}
		if err == nil {
			entered := make(chan error)
			go func() { entered <- d.enter(open, sealing) }() // awaited below
			select {
			case err := <-entered:
				t.Fatalf("a draft is sealed while it changes: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			end()
			if err := <-entered; err != nil {
				t.Error(err)
			}
			continue
		}
		if err := d.enter(open, sealing); !errors.Is(err, errno) {
			t.Errorf("seal in stage %d: %v", state, err)
		}
	}
	var none *mountedDraft
	if _, err := none.change(); !errors.Is(err, unix.ESTALE) {
		t.Errorf("a change of what is over: %v", err)
	}
}

// TestSettles: whoever publishes waits until the kernel asks for the name again, and not where it asks anyway.
func TestSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &mountedDraft{}
		for ago, want := range map[time.Duration]time.Duration{0: draftForgotten, time.Second: draftForgotten, answerTaken + time.Nanosecond: 0, time.Hour: 0} {
			d.told.Store(time.Now().Add(-ago).UnixNano())
			began := time.Now()
			d.settle(began)
			if took := time.Since(began); took != want {
				t.Errorf("told %v ago, it waits %v, want %v", ago, took, want)
			}
		}
	})
}

// TestRefusalsAreBounded: users choose the names in them.
func TestRefusalsAreBounded(t *testing.T) {
	var log strings.Builder
	v := newVolume(t, &log)
	for i := range 3 * loggedMax {
		v.refuse("mkdir %d", i)
		v.refuse("again and again")
	}
	if n := len(v.refused); n != refusedMax || !slices.Contains(v.refused, "again and again") || !slices.Contains(v.refused, fmt.Sprintf("mkdir %d", 3*loggedMax-1)) {
		t.Errorf("the status tells %q", v.refused)
	}
	if n := strings.Count(log.String(), "msg=refused"); n > 2*loggedMax { // the minute may have changed
		t.Errorf("the log has %d refusals", n)
	}
}

// TestListingsAreBounded: what open directories keep is limited for all of them together.
func TestListingsAreBounded(t *testing.T) {
	v := newVolume(t, io.Discard)
	half := make([]fuse.DirEntry, mostEntries/2+1)
	for handle := range uint64(3) {
		v.keepListing(handle, half)
	}
	v.keepListing(0, half[:1]) // it is listed anew
	if v.entries != 1 || len(v.listings) != 1 {
		t.Errorf("%d entries of %d listings are kept", v.entries, len(v.listings))
	}
}

// TestNamesMayChange: requests read the names of drafts and files, and the words of programs, while others change them. The race detector judges.
func TestNamesMayChange(t *testing.T) {
	v := newVolume(t, io.Discard)
	d := newDraft(t, v, "step.tmp", 0)
	n, _, err := v.mknod(d.root, "file", &fuse.MknodIn{InHeader: fuse.InHeader{Caller: fuse.Caller{Owner: *fuse.CurrentOwner()}}, Mode: unix.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	side := &node{ino: n.ino + 1, draft: v.side, file: -1}
	v.nodes[side.ino] = side
	d.lost = map[uint64]loss{n.ino: {n.generation, uint32(unix.EIO)}} // syncing fails at once
	v.room.nodes = shares.New(0, 0, 0)
	rename := func(i int) {
		if err := d.rename(t.Context(), "step", fmt.Sprint(i)); err != nil {
			t.Error(err)
		}
	}
	for _, pair := range [][2]func(i int){
		{func(i int) { v.moved(n.ino, d.root, fmt.Sprint(i)) }, func(int) { _ = n.sync(false) }},
		{func(i int) { v.moved(side.ino, v.side.root, fmt.Sprint(i)) }, func(int) { _ = side.fits(sideMost + 1) }},
		{rename, func(int) { _ = d.moreNodes() }},
		{rename, func(int) { v.unpublished(d, unix.EBUSY) }},
		{
			func(i int) {
				v.mu.Lock()
				defer v.mu.Unlock()
				d.word.Latest = i%2 + 1 // of others
			},
			func(int) { v.goesOn(t.Context(), uint32(os.Getpid())) },
		},
	} {
		var all sync.WaitGroup
		done := make(chan struct{})
		all.Go(func() { // ends with the reader
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
					pair[0](i)
				}
			}
		})
		for i := range 500 {
			pair[1](i)
		}
		close(done)
		all.Wait()
	}
	v.moved(n.ino, d.root, "file")
	delete(v.nodes, side.ino)
}

func TestErrorsAreErrnos(t *testing.T) {
	for errno, err := range map[unix.Errno]error{
		0: nil, unix.EBUSY: checkpoint.ErrOpen, unix.EEXIST: checkpoint.ErrExists, unix.EINVAL: checkpoint.ErrInvalid, unix.EINTR: context.Canceled,
		unix.EPERM: asuser.ErrOther, unix.EFBIG: fmt.Errorf("too large: %w", unix.EFBIG), unix.EIO: errors.New("any other"),
	} {
		if got := errnoOf(err); unix.Errno(got) != errno {
			t.Errorf("%v is %v", err, unix.Errno(got))
		}
	}
}
