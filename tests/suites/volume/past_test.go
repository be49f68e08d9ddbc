package volume_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// pastFiles are what the writers of these tests write past FUSE.
var pastFiles = map[string][]byte{"file": []byte("bytes"), "sub/file": bytes.Repeat([]byte("0123456789"), 600_000), "empty": nil}

func sumsOf(data []byte) (sums []uint32) {
	for chunk := range slices.Chunk(data, control.SumChunk) {
		sums = append(sums, crc32.Checksum(chunk, crc32.MakeTable(crc32.Castagnoli)))
	}
	return sums
}

// pastSteps are the steps of writePast, in their order.
var pastSteps = []string{"begun", "added", "written", "closed", "half sealed", "sealed", "published"}

// writePast writes a checkpoint past FUSE, and calls at after each step.
func writePast(ctx context.Context, path string, at func(step string)) error {
	d, err := control.BeginDraft(ctx, path, 0, 1, "test")
	if err != nil {
		return err
	}
	at("begun")
	var files []control.NewFile
	total := int64(0)
	for _, name := range []string{"file", "sub/file", "empty"} {
		files = append(files, control.NewFile{Name: name, Size: int64(len(pastFiles[name]))})
		total += files[len(files)-1].Size
	}
	first, pens, err := d.Add(ctx, files...)
	if err != nil {
		return errors.Join(err, d.Drop(ctx))
	}
	at("added")
	for i, pen := range pens {
		if _, err := pen.WriteAt(pastFiles[files[i].Name], 0); err != nil {
			return err
		}
	}
	at("written")
	for i, pen := range pens {
		if err := errors.Join(pen.Truncate(files[i].Size), pen.Sync(), pen.Close()); err != nil {
			return err
		}
	}
	at("closed")
	for i := range files {
		if err := d.Seal(ctx, first+uint32(i), sumsOf(pastFiles[files[i].Name])); err != nil {
			return err
		}
		if i == 0 {
			at("half sealed")
		}
	}
	at("sealed")
	if err := d.Publish(ctx, len(files), total); err != nil {
		return err
	}
	at("published")
	return nil
}

// pastWriter is a process that writes a checkpoint past FUSE, and stops at a step until it may go on.
type pastWriter struct {
	*exec.Cmd
	out *bufio.Reader
	in  io.WriteCloser
}

func startPast(t *testing.T, path, step string) *pastWriter {
	t.Helper()
	w := &pastWriter{Cmd: exec.Command("/proc/self/exe", path, step)}
	w.Env = append(os.Environ(), childVerb+"=past")
	out, err := w.StdoutPipe()
	must(t, err)
	w.in, err = w.StdinPipe()
	must(t, err)
	w.out = bufio.NewReader(out)
	must(t, w.Start())
	if line, err := w.out.ReadString('\n'); line != "there\n" {
		t.Fatalf("the writer says %q, %v", line, err)
	}
	return w
}

// past is the child's work.
func past(path, stop string) error {
	return writePast(context.Background(), path, func(step string) {
		if step == stop {
			fmt.Println("there")
			_, _ = os.Stdin.Read(make([]byte, 1)) // its parent says when
		}
	})
}

// pastIsWhole tells whether a checkpoint is there, on the disk and through the mount.
func pastIsWhole(t *testing.T, v *volume, name string) {
	t.Helper()
	for _, path := range []string{v.Path(name), filepath.Join(v.dir, name)} {
		for file, data := range pastFiles {
			if got, err := os.ReadFile(filepath.Join(path, file)); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s/%s has %d bytes, %v", path, file, len(got), err)
			}
		}
	}
	if code, out, errs := run(t, "checkpoint", "verify", filepath.Join(v.dir, name)); code != 0 {
		t.Errorf("verify: %d %s%s", code, out, errs)
	}
}

// TestPastWritersAndDaemonsAreKilled: whoever is killed at whatever step, a checkpoint is there as a whole, or nothing of it.
func TestPastWritersAndDaemonsAreKilled(t *testing.T) {
	v := mount(t)
	for i, step := range pastSteps {
		t.Run(step, func(t *testing.T) {
			name := fmt.Sprintf("daemon_%d", i)
			w := startPast(t, v.Path(name), step)
			v.kill(t)
			must(t, w.in.Close())
			rest, err := io.ReadAll(w.out)
			if must(t, err); w.Wait() != nil || string(rest) != "ok\n" {
				t.Errorf("the writer goes on after the daemon: %q", rest)
			}
			pastIsWhole(t, v, name)
			for what, kill := range map[string]func(w *pastWriter){
				"writer":           func(w *pastWriter) { must(t, w.Process.Kill()) },
				"writer, daemon":   func(w *pastWriter) { must(t, w.Process.Kill()); v.kill(t) },
				"daemon, writer":   func(w *pastWriter) { v.kill(t); must(t, w.Process.Kill()) },
				"both at a moment": func(w *pastWriter) { must(t, errors.Join(syscall.Kill(v.pid(t), syscall.SIGKILL), w.Process.Kill())) },
			} {
				name := fmt.Sprintf("%s_%d", strings.Map(func(r rune) rune { return max(r, 'A') }, what), i)
				w := startPast(t, v.Path(name), step)
				kill(w)
				_ = w.Wait() // it was killed
				if step == "published" {
					pastIsWhole(t, v, name)
					continue
				}
				if !blackbox.Within(patience, func() bool {
					_, err := os.Lstat(filepath.Join(v.dir, "."+name+".hbmfs.tmp"))
					_, lockErr := os.Lstat(filepath.Join(v.dir, "."+name+".hbmfs.lock"))
					return errors.Is(err, os.ErrNotExist) && errors.Is(lockErr, os.ErrNotExist)
				}) {
					t.Errorf("%s: %q is left", what, listed(t, v.dir))
				}
				if _, err := os.Stat(v.Path(name)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s: it is there: %v", what, err)
				}
			}
		})
	}
}

// TestPastPublishedNeverChanges: what was written past FUSE is as safe as what went through it, from its owner and from root.
func TestPastPublishedNeverChanges(t *testing.T) {
	v := mount(t)
	if said := as(t, nobody, nil, "past", v.Path("step"), ""); said != "ok" {
		t.Fatalf("an ordinary user writes: %s", said)
	}
	pastIsWhole(t, v, "step")
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(v.dir, "step", "file"), &st))
	if st.Uid != nobody || st.Gid != nobody || st.Mode&0o777 != 0o444 {
		t.Errorf("the file is of %d:%d with mode %o", st.Uid, st.Gid, st.Mode)
	}
	for _, user := range []uint32{0, nobody, other} {
		if said := as(t, user, nil, "changes", v.Path("step")); said != "ok" {
			t.Errorf("user %d: %s", user, said)
		}
	}
	want(t, "begin it again", writePast(t.Context(), v.Path("step"), func(string) {}), unix.EEXIST)
	if said := as(t, other, nil, "rmdir", v.Path("step")); said != "EPERM" {
		t.Errorf("another user removes it: %s", said)
	}
	if said := as(t, nobody, nil, "rmdir", v.Path("step")); said != "ok" {
		t.Errorf("its owner removes it: %s", said)
	}
}

// TestPastAndThroughTheMount: drafts of both kinds know of each other.
func TestPastAndThroughTheMount(t *testing.T) {
	v := mount(t)
	w := startPast(t, v.Path("step"), "added")
	defer func() { _ = errors.Join(w.Process.Kill(), w.Wait()) }()
	if err := os.Mkdir(v.Path("step.tmp"), 0o755); err == nil {
		t.Error("a directory is made beside a draft of its name")
	}
	if names := listed(t, v.point); len(names) != 0 {
		t.Errorf("%q is listed", names)
	}
	if said := as(t, nobody, nil, "past", v.Path("step"), ""); said != "EBUSY" {
		t.Errorf("another user begins it: %s", said)
	}
	if said := as(t, nobody, nil, "attach", v.Path("step")); said != "ENOENT" {
		t.Errorf("another user attaches: %s", said)
	}
	v.draft(t, "plain", map[string]string{"file": "bytes"})
	want(t, "a draft of a plain program, past FUSE", writePast(t.Context(), v.Path("plain"), func(string) {}), unix.EBUSY)
	must(t, v.publish("plain"))
}

// TestPastOnAFullDisk: a file that has no room is refused when it is asked for, and nothing is left.
func TestPastOnAFullDisk(t *testing.T) {
	v := mount(t) // skips where nothing can be mounted
	v.end(t)
	v = mountAt(t, small(t))
	d, err := control.BeginDraft(t.Context(), v.Path("step"), 0, 1, "test")
	must(t, err)
	_, _, err = d.Add(t.Context(), control.NewFile{Name: "large", Size: 100 << 20})
	want(t, "a file that is larger than the disk", err, unix.ENOSPC)
	_, pens, err := d.Add(t.Context(), control.NewFile{Name: "small", Size: 1 << 20})
	must(t, err)
	must(t, errors.Join(pens[0].Close(), d.Drop(t.Context())))
	must(t, writePast(t.Context(), v.Path("step"), func(string) {}))
	pastIsWhole(t, v, "step")
}

// TestPastAsAnOrdinaryUser: an ordinary user's daemon cannot mount, and keeps the promises that leases keep.
func TestPastAsAnOrdinaryUser(t *testing.T) {
	blackbox.NeedRoot(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("needs fusermount3")
	}
	private, err := blackbox.PublicFUSE()
	must(t, err)
	defer func() { must(t, private()) }()
	args := []string{suite.Path()}
	for range 2 {
		dir := suite.NewDir(t)
		must(t, os.Chown(dir, nobody, nobody))
		args = append(args, dir)
	}
	if said := as(t, nobody, nil, "ordinary past", args...); said != "ok" {
		t.Error(said)
	}
	if names := listed(t, args[1]); !slices.Equal(names, []string{"step"}) {
		t.Errorf("the directory has %q", names)
	}
}

// ordinaryPast mounts a volume, and writes into it past FUSE.
func ordinaryPast(hbmfs, directory, point string) (err error) {
	if out, err := exec.Command(hbmfs, "checkpoint", "mount", "--log-file", "/dev/null", directory, point).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	defer func() {
		if out, umountErr := exec.Command(hbmfs, "umount", point).CombinedOutput(); umountErr != nil {
			err = errors.Join(err, umountErr, errors.New(string(out)))
		}
	}()
	ctx := context.Background()
	d, err := control.BeginDraft(ctx, point+"/pen", 0, 1, "test")
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	first, pens, err := d.Add(ctx, control.NewFile{Name: "file", Size: 5})
	if err != nil {
		return err
	}
	_, err = pens[0].WriteString("bytes")
	if err := errors.Join(err, pens[0].Truncate(5), d.Seal(ctx, first, sumsOf([]byte("bytes")))); err != nil {
		return err
	}
	if err := d.Publish(ctx, 1, 5); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), `"file"`) {
		return fmt.Errorf("it is published while it is open: %w", err)
	}
	if err := errors.Join(pens[0].Close(), d.Drop(ctx), writePast(ctx, point+"/step", func(string) {})); err != nil {
		return err
	}
	text, err := os.ReadFile(point + "/step/file")
	if err != nil || string(text) != "bytes" {
		return fmt.Errorf("it has %q: %w", text, err)
	}
	return nil
}
