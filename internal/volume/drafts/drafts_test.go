package drafts

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestACheckpointIsPublished(t *testing.T) {
	v := newVolume(t, volumeOptions{})
	d := v.begin(t, "step_1")
	write(t, d, "weights", make([]byte, 9<<20+5))
	write(t, d, "sub/empty", nil)
	if info := v.server.Drafts(); len(info) != 1 || info[0].PID != os.Getpid() || info[0].Files != 2 || info[0].Sealed != 2 || !v.server.Has("step_1") {
		t.Errorf("the status shows %+v", info)
	}
	must(t, d.Publish(t.Context(), 2, 9<<20+5))
	if !v.complete(t, "step_1") || <-v.said != "step_1" || v.server.Has("step_1") {
		t.Error("it is not there")
	}
	if err := d.Drop(t.Context()); err != nil || !v.complete(t, "step_1") {
		t.Errorf("to drop it afterwards: %v", err)
	}
	if _, err := control.BeginDraft(t.Context(), filepath.Join(v.dir, "step_1"), 0, 1, "test"); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("again: %v, want EEXIST", err)
	}
}

func TestAPlainDirectoryIsNoVolume(t *testing.T) {
	if in, err := control.InVolume(t.Context(), filepath.Join(t.TempDir(), "a/b/step_1"), "test"); in || err != nil {
		t.Errorf("%v, %v", in, err)
	}
	v := newVolume(t, volumeOptions{})
	if in, err := control.InVolume(t.Context(), filepath.Join(v.dir, "step_1"), "test"); !in || err != nil {
		t.Errorf("in a volume: %v, %v", in, err)
	}
	if in, err := control.InVolume(t.Context(), filepath.Join(v.dir, "run/step_1"), "test"); in || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("not at its top: %v, %v", in, err)
	}
}

func TestSeveralProcessesWriteOneDraft(t *testing.T) {
	v := newVolume(t, volumeOptions{})
	first := v.begin(t, "step_1")
	second, err := control.AttachDraft(t.Context(), first.Path, "another rank")
	must(t, err)
	write(t, second, "b", []byte("second"))
	write(t, first, "a", []byte("first"))
	must(t, second.Close())
	if err := first.Publish(t.Context(), 1, 5); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("without the other's file: %v", err)
	}
	must(t, first.Publish(t.Context(), 2, 11))
	if !v.complete(t, "step_1") {
		t.Error("it is not complete")
	}
}

func TestOrderIsKept(t *testing.T) {
	v := newVolume(t, volumeOptions{})
	d := v.begin(t, "step_1")
	ctx := t.Context()
	data := make([]byte, 9<<20)
	first, pens, err := d.Add(ctx, control.NewFile{Name: "a", Size: int64(len(data))})
	must(t, err)
	if err := d.Publish(ctx, 1, int64(len(data))); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("published without seals: %v", err)
	}
	sums := sumsFor(data)
	must(t, pens[0].Truncate(5))
	if err := d.Seal(ctx, first, sums); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a file of another size is sealed: %v", err)
	}
	if err := d.Publish(ctx, 1, int64(len(data))); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("and published: %v", err)
	}
	must(t, pens[0].Truncate(int64(len(data))))
	other := slices.Clone(sums)
	other[1]++
	for what, bad := range map[string][]uint32{"too many sums": append(slices.Clone(sums), 1), "other sums": other} {
		if err := d.Seal(ctx, first, bad); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, d.Seal(ctx, first, sums))
	must(t, d.Seal(ctx, first, sums)) // a second time, as after a lost answer
	if err := d.Seal(ctx, first+7, sums); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, _, err := d.Add(ctx, control.NewFile{Name: "a", Size: 1}); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("a name twice: %v", err)
	}
	if err := d.Publish(ctx, 1, int64(len(data))); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("while its pen is open: %v", err)
	}
	must(t, pens[0].Close())
	must(t, d.Publish(ctx, 1, int64(len(data))))
}

// A pen that went to another process is one all the same.
func TestAnotherProcessKeepsAPen(t *testing.T) {
	v := newVolume(t, volumeOptions{})
	d := v.begin(t, "step_1")
	first, pens, err := d.Add(t.Context(), control.NewFile{Name: "a", Size: 4096})
	must(t, err)
	keeper := exec.Command("sleep", "100")
	keeper.ExtraFiles = pens
	must(t, keeper.Start())
	must(t, errors.Join(pens[0].Close(), d.Seal(t.Context(), first, sumsFor(make([]byte, 4096)))))
	if err := d.Publish(t.Context(), 1, 4096); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("while another process has it: %v", err)
	}
	if v.complete(t, "step_1") {
		t.Error("it is published")
	}
	_ = errors.Join(keeper.Process.Kill(), keeper.Wait())
	must(t, d.Publish(t.Context(), 1, 4096))
}

func TestHostileRequestsAreRefused(t *testing.T) {
	v := newVolume(t, volumeOptions{})
	for _, name := range []string{"", ".", "..", "a/b", "../a", ".hidden", "a\x00", "a\nb", strings.Repeat("a", 300)} {
		if err := raw(t, v, control.TypeBegin, (&control.Begin{Parts: 1, Name: name}).AppendTo); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a checkpoint %q: %v, want EINVAL", name, err)
		}
	}
	for _, part := range [][2]uint32{{0, 0}, {1, 1}, {math.MaxInt32, math.MaxInt32}} {
		if err := raw(t, v, control.TypeBegin, (&control.Begin{Part: part[0], Parts: part[1], Name: "a"}).AppendTo); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("part %d of %d: %v", part[0], part[1], err)
		}
	}
	d := v.begin(t, "step_1")
	for _, name := range []string{"", ".", "..", "../a", "/a", "a//b", "a/", "a/../../b", ".hbmfs-manifest.json", "a\x00"} {
		if _, _, err := d.Add(t.Context(), control.NewFile{Name: name, Size: 1}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a file %q: %v", name, err)
		}
	}
	for _, size := range []int64{math.MaxInt64, math.MaxInt64 - 4096, 1 << 62} {
		if _, _, err := d.Add(t.Context(), control.NewFile{Name: "large", Size: size}); err == nil {
			t.Errorf("a file of %d bytes is made", size)
		}
	}
	if len(v.server.Drafts()) != 1 || v.server.files.Booked()+v.server.chunks.Booked() != 0 {
		t.Errorf("%+v, %d files", v.server.Drafts(), v.server.files.Booked())
	}
	if _, err := control.AttachDraft(t.Context(), filepath.Join(v.dir, "step_7"), "test"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a draft that nobody has begun: %v", err)
	}
	for what, f := range map[string]func(other *control.DraftClient) error{
		"files": func(other *control.DraftClient) error {
			_, _, err := other.Add(t.Context(), control.NewFile{Name: "x", Size: 1})
			return err
		},
		"sums":    func(other *control.DraftClient) error { return other.Seal(t.Context(), 0, nil) },
		"publish": func(other *control.DraftClient) error { return other.Publish(t.Context(), 0, 0) },
	} {
		other, err := control.AttachDraft(t.Context(), d.Path, "thief")
		must(t, err)
		other.ID = control.DraftID{1, 2, 3}
		if err := f(other); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s of a draft whose number is guessed: %v", what, err)
		}
		must(t, other.Drop(t.Context()))
	}
}

// raw sends one frame after HELLO, and gives the refusal that answers it.
func raw(t *testing.T, v *volume, kind control.FrameType, payload func([]byte) []byte) error {
	t.Helper()
	session := v.server.Session(asuser.User{UID: uint32(os.Geteuid()), Capable: true}, nil)
	defer session.End()
	a, err := session.Handle(t.Context(), kind, payload(nil))
	closeAll(a.Files)
	return err
}

func TestMalformedFramesEndTheConnection(t *testing.T) {
	v := newVolume(t, volumeOptions{})
	for kind := control.TypeBegin; kind <= control.TypeDrop; kind++ {
		err := raw(t, v, kind, func(b []byte) []byte { return append(b, 1, 2, 3) })
		var refusal *control.Refusal
		if err == nil || errors.As(err, &refusal) {
			t.Errorf("frame %d: %v", kind, err)
		}
	}
}

// A writer that is killed at any step leaves nothing, or the whole checkpoint.
func TestAKilledWriterLeavesNothing(t *testing.T) {
	for _, step := range clientStepNames {
		t.Run(step, func(t *testing.T) {
			v := newVolume(t, volumeOptions{})
			openFiles := leaks.Files(t)
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), "HBMFS_TEST_STEP="+step, "HBMFS_TEST_DIR="+v.dir)
			out, err := child.StdoutPipe()
			must(t, err)
			must(t, child.Start())
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "there\n" {
				t.Fatalf("the writer says %q, %v", line, err)
			}
			_ = errors.Join(child.Process.Kill(), child.Wait())
			if step == "published" {
				if left := v.left(t); !v.complete(t, "step_1") || len(left) != 1 {
					t.Errorf("%v is there", left)
				}
				return
			}
			for end := time.Now().Add(time.Minute); len(v.left(t)) > 0; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%v is left", v.left(t))
				}
			}
			if err := openFiles(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The draft is its process's, and another connection goes on with it. Where the kernel does not tell processes, it ends.
func TestAConnectionEndsAtEachStep(t *testing.T) {
	for _, noProcess := range []bool{false, true} {
		t.Run(fmt.Sprint(noProcess), func(t *testing.T) {
			v := newVolume(t, volumeOptions{noProcess: noProcess})
			d := v.begin(t, "step_1")
			write(t, d, "a", []byte("a"))
			v.stop()
			v.serve(t, volumeOptions{noProcess: noProcess})
			_, pens, err := d.Add(t.Context(), control.NewFile{Name: "b", Size: 0})
			if noProcess {
				if !errors.Is(err, syscall.ENOENT) || len(v.left(t)) != 0 {
					t.Errorf("%v, %v is left", err, v.left(t))
				}
				return
			}
			must(t, err)
			v.stop()
			v.serve(t, volumeOptions{})
			must(t, pens[0].Close())
			must(t, d.Seal(t.Context(), 1, nil))
			v.stop()
			v.serve(t, volumeOptions{})
			must(t, d.Publish(t.Context(), 2, 1))
		})
	}
}

// An answer that is lost is asked for again: the second request does nothing more.
func TestRequestsMayComeTwice(t *testing.T) {
	v := newVolume(t, volumeOptions{})
	session := v.server.Session(asuser.User{UID: uint32(os.Geteuid()), Capable: true}, selfPidfd(t))
	defer session.End()
	twice := func(kind control.FrameType, payload func([]byte) []byte) []*os.File {
		t.Helper()
		var files []*os.File
		for range 2 {
			a, err := session.Handle(t.Context(), kind, payload(nil))
			must(t, err)
			files = append(files, a.Files...)
		}
		return files
	}
	id := control.DraftID{7}
	begin := control.Begin{ID: id, Parts: 1, Name: "step_1", Files: []control.NewFile{{Name: "a", Size: 1}, {Name: "b", Size: 2}}}
	pens := twice(control.TypeBegin, begin.AppendTo)
	if len(pens) != 4 {
		t.Fatalf("%d descriptors", len(pens))
	}
	for i := range 2 { // both are the same file
		one, oneErr := pens[i].Stat()
		two, twoErr := pens[i+2].Stat()
		must(t, errors.Join(oneErr, twoErr))
		if !os.SameFile(one, two) {
			t.Error("another file is given")
		}
		must(t, errors.Join(pens[i].Close(), fill(pens[i+2], make([]byte, i+1))))
	}
	add := control.AddFiles{ID: id, Files: []control.NewFile{{Name: "c", Size: 0}}}
	closeAll(twice(control.TypeAdd, add.AppendTo))
	for i := range 3 {
		seal := control.Seal{ID: id, File: uint32(i), Sums: sumsFor(make([]byte, (i+1)%3))}
		twice(control.TypeSeal, seal.AppendTo)
	}
	publish := control.PublishDraft{ID: id, Files: 3, Bytes: 3}
	twice(control.TypePublish, publish.AppendTo)
	twice(control.TypeDrop, (&control.DropDraft{ID: id}).AppendTo)
	if !v.complete(t, "step_1") {
		t.Error("it is not complete")
	}
	if _, err := session.Handle(t.Context(), control.TypeBegin, begin.AppendTo(nil)); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("its number, once more: %v", err)
	}
}

func selfPidfd(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	must(t, err)
	return os.NewFile(uintptr(fd), "self")
}

// A user who takes all that is there leaves enough for others.
func TestAGreedyUserLeavesRoomForOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root serves others")
	}
	v := newVolume(t, volumeOptions{})
	v.server.drafts, v.server.files, v.server.unnamed = small(8), small(32), small(16)
	greedy := v.server.Session(asuser.User{UID: 4711, GID: 4711}, selfPidfd(t))
	defer greedy.End()
	var kept []*os.File
	defer func() { closeAll(kept) }()
	n := 0
	for ; ; n++ {
		begin := control.Begin{ID: control.DraftID{byte(n)}, Parts: 1, Name: fmt.Sprintf("greedy_%d", n)}
		if _, err := greedy.Handle(t.Context(), control.TypeBegin, begin.AppendTo(nil)); err != nil {
			if !errors.Is(err, syscall.EAGAIN) {
				t.Errorf("draft %d: %v", n, err)
			}
			break
		}
	}
	files := 0
	for ; ; files++ {
		add := control.AddFiles{ID: control.DraftID{0}, Files: []control.NewFile{{Name: fmt.Sprint(files), Size: 1}}}
		a, err := greedy.Handle(t.Context(), control.TypeAdd, add.AppendTo(nil))
		if err != nil {
			if !errors.Is(err, syscall.EAGAIN) {
				t.Errorf("file %d: %v", files, err)
			}
			break
		}
		kept = append(kept, a.Files...)
	}
	if n != 4 || files != 16 || v.server.unnamed.Of(4711) != 8 {
		t.Errorf("the greedy user has %d drafts, %d files, %d without names", n, files, v.server.unnamed.Of(4711))
	}
	modest := v.server.Session(asuser.User{UID: 4712, GID: 4712}, selfPidfd(t))
	defer modest.End()
	begin := control.Begin{ID: control.DraftID{0}, Parts: 1, Name: "modest", Files: []control.NewFile{{Name: "a", Size: 3}}}
	a, err := modest.Handle(t.Context(), control.TypeBegin, begin.AppendTo(nil))
	must(t, err)
	info, err := a.Files[0].Stat()
	must(t, err)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 4712 || st.Gid != 4712 || st.Mode&0o777 != 0o600 {
		t.Errorf("the file is of %d:%d, mode %o", st.Uid, st.Gid, st.Mode)
	}
	must(t, fill(a.Files[0], []byte("abc")))
	seal := control.Seal{ID: control.DraftID{0}, Sums: sumsFor([]byte("abc"))}
	_, err = modest.Handle(t.Context(), control.TypeSeal, seal.AppendTo(nil))
	must(t, err)
	publish := control.PublishDraft{ID: control.DraftID{0}, Files: 1, Bytes: 3}
	_, err = modest.Handle(t.Context(), control.TypePublish, publish.AppendTo(nil))
	must(t, err)
	if !v.complete(t, "modest") {
		t.Error("the other user's is not complete")
	}
	info, err = os.Stat(filepath.Join(v.dir, "modest"))
	must(t, err)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 4712 || st.Gid != 4712 {
		t.Errorf("the checkpoint is of %d:%d", st.Uid, st.Gid)
	}
}

// The kernel says who may make a checkpoint.
func TestWhoMayNotWriteMayNotBegin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root serves others")
	}
	v := newVolume(t, volumeOptions{as: &asuser.User{UID: 4711, GID: 4711}})
	must(t, os.Chmod(v.dir, 0o755))
	_, err := control.BeginDraft(t.Context(), filepath.Join(v.dir, "step_1"), 0, 1, "test")
	if !errors.Is(err, syscall.EACCES) || len(v.left(t)) != 0 {
		t.Errorf("%v, %v is left", err, v.left(t))
	}
	must(t, errors.Join(os.Chown(v.dir, 0, 4711), os.Chmod(v.dir, 0o775)))
	d := v.begin(t, "step_1")
	write(t, d, "a", []byte("a"))
	must(t, d.Publish(t.Context(), 1, 1))
	thief := v.server.Session(asuser.User{UID: 4712}, nil)
	defer thief.End()
	other := v.begin(t, "step_2")
	for kind, payload := range map[control.FrameType][]byte{
		control.TypeAdd:     (&control.AddFiles{ID: other.ID, Files: []control.NewFile{{Name: "x"}}}).AppendTo(nil),
		control.TypePublish: (&control.PublishDraft{ID: other.ID}).AppendTo(nil),
	} {
		if _, err := thief.Handle(t.Context(), kind, payload); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("frame %d of another user: %v", kind, err)
		}
	}
	if _, err := thief.Handle(t.Context(), control.TypeDrop, (&control.DropDraft{ID: other.ID}).AppendTo(nil)); err != nil || !v.server.Has("step_2") {
		t.Errorf("another user drops it: %v", err)
	}
}

func small(limit int64) *shares.Shares { return shares.New(limit, limit/2, 0) }

// TestPartsMayComeAgain: sums that come twice leave those alone that came since, also in the journal for the next daemon.
func TestPartsMayComeAgain(t *testing.T) {
	v := newVolume(t, volumeOptions{})
	d := v.begin(t, "step_1")
	data := make([]byte, 3*control.SumChunk)
	number, pens, err := d.Add(t.Context(), control.NewFile{Name: "a", Size: int64(len(data))})
	must(t, err)
	sums := sumsFor(data)
	made := v.server.list()[0]
	part := func(first, end int) error {
		return made.seal(&control.Seal{ID: made.id, File: number, First: uint64(first), Sums: sums[first:end]})
	}
	must(t, errors.Join(part(0, 2), part(0, 1), pens[0].Truncate(5)))
	if part(2, 3) == nil {
		t.Error("a file of another size is sealed")
	}
	must(t, errors.Join(part(0, 1), pens[0].Truncate(int64(len(data))), part(2, 3), pens[0].Close()))
	must(t, d.Publish(t.Context(), 1, int64(len(data))))

	next := &clientDraft{byName: map[string]int{}}
	name, err := json.Marshal(added{Name: "a", Size: int64(len(data))})
	must(t, errors.Join(err, next.replay(recordFile, name, nil)))
	for _, record := range [][2]int{{0, 2}, {0, 1}, {2, 3}} { // as earlier versions wrote them
		must(t, next.replay(recordSeal, (&control.Seal{File: number, First: uint64(record[0]), Sums: sums[record[0]:record[1]]}).AppendTo(nil), nil))
	}
	if f := next.files[0]; !slices.Equal(f.sums, sums) || f.known != int64(len(sums)) {
		t.Errorf("the next daemon has %d sums, and knows %d", len(f.sums), f.known)
	}
}
