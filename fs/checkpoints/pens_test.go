package checkpoints

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// kernel sends requests to a mounted volume. It opens no file itself, as when its callers get no CPU.
type kernel struct {
	*router
	t      *testing.T
	unique uint64
}

func newKernel(t *testing.T) *kernel {
	t.Helper()
	blackbox.NeedRoot(t)
	if err := blackbox.CanMount(); err != nil {
		t.Skip(err)
	}
	v := newVolume(t, t.Output())
	m, err := fs.New(t.Context(), t.TempDir(), v.Listing(), fs.Options{Source: v.Path(), Top: v, Log: slog.New(slog.DiscardHandler)})
	blackbox.Must(t, err)
	served := make(chan struct{})
	go func() { // ends with the mount, awaited below
		m.Serve(t.Context())
		close(served)
	}()
	<-m.Ready()
	t.Cleanup(func() {
		blackbox.Must(t, m.Detach())
		<-served
	})
	return &kernel{router: &router{Mount: m, v: v}, t: t}
}

// header is that of a request of this process about a node.
func (k *kernel) header(node uint64) fuse.InHeader {
	k.unique += 2
	return fuse.InHeader{Unique: k.unique, NodeId: node, Caller: fuse.Caller{Pid: uint32(os.Getpid())}}
}

// draft makes NAME.tmp with a file, which is open for writing.
func (k *kernel) draft(name string) (file, handle uint64) {
	k.t.Helper()
	var dir fuse.EntryOut
	var out fuse.CreateOut
	k.want("mkdir", k.Mkdir(nil, &fuse.MkdirIn{InHeader: k.header(rootID), Mode: 0o755}, name+Suffix, &dir), 0)
	k.want("create", k.Create(nil, &fuse.CreateIn{InHeader: k.header(dir.NodeId), Flags: unix.O_WRONLY, Mode: 0o644}, "file", &out), 0)
	if k.Passthrough() == "" && out.BackingID == 0 {
		k.t.Fatal("the kernel does not take the file for passthrough")
	}
	return out.NodeId, out.Fh
}

func (k *kernel) publish(name string) fuse.Status {
	return k.Rename(nil, &fuse.RenameIn{InHeader: k.header(rootID), Newdir: rootID}, name+Suffix, name)
}

func (k *kernel) write(file, handle uint64) fuse.Status {
	_, status := k.Write(nil, &fuse.WriteIn{InHeader: k.header(file), Fh: handle}, []byte("late"))
	return status
}

func (k *kernel) want(what string, status fuse.Status, errno unix.Errno) {
	k.t.Helper()
	if unix.Errno(status) != errno {
		k.t.Fatalf("%s: %v, want %v", what, status, fuse.Status(errno))
	}
}

// TestAnAnswerUnderWayIsAPen: from the answer that lets a program write until the kernel says that the file is closed, a draft is not published.
func TestAnAnswerUnderWayIsAPen(t *testing.T) {
	k := newKernel(t)
	file, handle := k.draft("step")
	k.want("publish what was created for writing", k.publish("step"), unix.EBUSY)
	k.Release(nil, &fuse.ReleaseIn{InHeader: k.header(file), Fh: handle})
	var reads, writes fuse.OpenOut
	k.want("open to read", k.Open(nil, &fuse.OpenIn{InHeader: k.header(file), Flags: unix.O_RDONLY}, &reads), 0)
	k.want("open to write", k.Open(nil, &fuse.OpenIn{InHeader: k.header(file), Flags: unix.O_WRONLY}, &writes), 0)
	k.want("publish what was opened for writing", k.publish("step"), unix.EBUSY)
	d := k.v.draftShown("step.tmp")
	release := fuse.ReleaseIn{InHeader: k.header(file), Fh: writes.Fh}
	released := make(chan struct{})
	go func() { // awaited below
		defer close(released)
		blackbox.Within(time.Minute, func() bool { // the kernel says it a moment after close(2)
			end, err := d.change()
			if err == nil {
				end()
			}
			return err != nil
		})
		k.Release(nil, &release)
	}()
	k.want("publish what is just being closed", k.publish("step"), 0)
	<-released
	k.want("open what is published", k.Open(nil, &fuse.OpenIn{InHeader: k.header(file), Flags: unix.O_WRONLY}, &writes), unix.EROFS)
	k.Release(nil, &fuse.ReleaseIn{InHeader: k.header(file), Fh: reads.Fh})
}

// TestPensOfTheDaemonBefore: a file that is open for writing keeps its draft from being published also when the daemon was replaced, with passthrough and without.
func TestPensOfTheDaemonBefore(t *testing.T) {
	k := newKernel(t)
	for name, before := range map[string]fs.Opened{
		"with_passthrough":    {Backing: 1 << 20, Writes: true},
		"without_passthrough": {Writes: true},
		"unmarked":            {}, // by a daemon of an earlier version
	} {
		file, handle := k.draft(name)
		k.Release(nil, &fuse.ReleaseIn{InHeader: k.header(file), Fh: handle})
		before.Inode = file &^ outer
		opener := k.header(file)
		handle, ok := k.Book(&opener, before)
		if !ok {
			t.Fatal("no room for a handle")
		}
		k.v.adoptOpens()
		if before.Writes {
			k.want("publish "+name, k.publish(name), unix.EBUSY)
			if d := k.v.draftShown(name + Suffix); before.Backing == 0 { // otherwise the kernel writes itself
				blackbox.Must(t, d.enter(open, sealing))
				k.want("write "+name+" while somebody tries to publish it", k.write(file, handle), 0)
				blackbox.Must(t, d.enter(sealing, open))
			}
			k.Release(nil, &fuse.ReleaseIn{InHeader: k.header(file), Fh: handle})
			k.want("publish "+name+" when it is closed", k.publish(name), 0)
			continue
		}
		k.want("publish "+name, k.publish(name), 0)
		k.want("write "+name, k.write(file, handle), unix.EROFS)
		_, status := k.Read(nil, &fuse.ReadIn{InHeader: k.header(file), Fh: handle, Flags: unix.O_RDWR, Size: 10}, make([]byte, 10))
		k.want("read "+name, status, 0)
		if text, err := os.ReadFile(filepath.Join(k.v.Path(), name, "file")); err != nil || len(text) != 0 {
			t.Errorf("%s has %q, %v", name, text, err)
		}
		k.Release(nil, &fuse.ReleaseIn{InHeader: k.header(file), Fh: handle})
	}
}
