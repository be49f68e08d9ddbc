package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// When a framework has finished a checkpoint, only the framework knows. It says so in one of these ways, besides a rename and hbmfs publish:
//
//   - Megatron writes the iteration's number into its tracker, after a barrier of all ranks. Closing the tracker publishes the draft.
//   - DeepSpeed's rank 0 writes the tag into latest, and a barrier of all ranks follows. So the draft is published when that process next begins
//     or removes a checkpoint, or writes latest again.
//   - torch's DCP renames .metadata, but frameworks around it write more files afterwards. So the draft is published once all processes that wrote
//     to it have ended. The same goes for one that latest names.
//
// A file that is removed, or opened again for writing, takes the word of .metadata back: the program saves once more.

// Trackers among the side files.
const (
	megatronTracker  = "latest_checkpointed_iteration.txt"
	deepspeedTracker = "latest"
)

func isTracker(name string) bool { return name == megatronTracker || name == deepspeedTracker }

// megatrons tells the names of Megatron's checkpoints. Its tracker says when one is finished, and nothing else does.
func megatrons(name string) bool {
	digits, ok := strings.CutPrefix(name, "iter_")
	return name == "release" || ok && len(digits) >= 7 && strings.Trim(digits, "0123456789") == ""
}

// word is a program's statement about a draft.
type word struct {
	Metadata bool `json:",omitempty"` // torch's DCP has renamed .metadata
	Latest   int  `json:",omitempty"` // the process that wrote DeepSpeed's latest
}

// finished notes that torch's DCP has renamed .metadata, or takes that back.
func (d *mountedDraft) finished(is bool) {
	v := d.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if is = is && d.shown == d.name && !megatrons(d.name); is != d.word.Metadata {
		d.word.Metadata = is
		v.keep()
	}
}

// rewritten takes the word of .metadata back, where a file is written again.
func (d *mountedDraft) rewritten() {
	if d == nil {
		return
	}
	d.v.mu.Lock()
	said := d.word.Metadata
	d.v.mu.Unlock()
	if said {
		d.finished(false)
	}
}

// tracked publishes the draft that a tracker file of a process names.
func (v *Volume) tracked(ctx context.Context, n *node, thread uint32) error {
	text, err := os.ReadFile(procPath(n.file))
	if err != nil {
		return err
	}
	name := strings.TrimSpace(string(text))
	if n.called() == deepspeedTracker {
		v.goesOn(ctx, thread)
		if d := v.draftNamed(name); d != nil {
			v.mu.Lock()
			d.word.Latest = processOf(thread)
			v.keep()
			v.mu.Unlock()
		}
		return nil
	}
	if number, err := strconv.ParseInt(name, 10, 64); err == nil {
		name = fmt.Sprintf("iter_%07d", number)
	}
	if d := v.draftNamed(name); d != nil {
		return d.publish(ctx, name)
	}
	return nil
}

// draftNamed finds a draft that will be published under a name and has it already.
func (v *Volume) draftNamed(name string) *mountedDraft {
	if checkpoint.CheckName(name) != nil {
		return nil
	}
	return v.draftShown(strings.TrimSuffix(name, Suffix))
}

// goesOn publishes the draft that a process has named in DeepSpeed's latest. The process goes on, so all ranks have
// passed the barrier.
func (v *Volume) goesOn(ctx context.Context, thread uint32) {
	named := map[*mountedDraft]int{}
	v.mu.Lock()
	for _, d := range v.drafts {
		if d.word.Latest != 0 {
			named[d] = d.word.Latest
		}
	}
	v.mu.Unlock()
	if len(named) == 0 {
		return
	}
	process := processOf(thread)
	for d, latest := range named {
		if latest == process {
			d.publishSaid(ctx, d.publish)
		}
	}
}

// publishSaid publishes a draft of which a framework has said that it is finished. Nobody waits for it; the status says why it was not. One of its processes may
// have been killed in the middle of a file, so files must be whole, as far as their formats tell.
func (d *mountedDraft) publishSaid(ctx context.Context, publish func(ctx context.Context, name string) error) {
	d.v.mu.Lock()
	name, said := d.name, d.word != word{} && d.shown == d.name
	d.v.mu.Unlock()
	if !said {
		return
	}
	if err := d.book.Whole(); errors.Is(err, checkpoint.ErrInvalid) {
		d.v.unpublished(d, err)
		return
	}
	_ = publish(ctx, name)
}

// publishAlone publishes where no request of the kernel waits for it.
func (d *mountedDraft) publishAlone(ctx context.Context, name string) error {
	end, err := d.v.inner.Task(d.owner.UID, "publish", []byte(name))
	if err != nil {
		d.v.unpublished(d, err)
		return err
	}
	err = d.publish(ctx, name)
	end() // not where it panics: the next daemon finds its mark
	return err
}

// writer is a process that has written to a draft.
type writer struct {
	PID   int
	Start uint64 // of the process, in ticks: another may have its number later
}

// wrote notes that a thread changes a draft. A process that this daemon cannot see, or cannot watch, may write for ever.
func (d *mountedDraft) wrote(thread uint32) {
	if d == nil || d == d.v.side {
		return
	}
	v := d.v
	v.mu.Lock()
	w, known := d.threads[thread]
	_, lives := d.writers[w]
	v.mu.Unlock()
	if known && (lives || thread == 0) {
		return
	}
	if thread != 0 {
		w = writerOf(processOf(thread))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if d.threads == nil || len(d.threads) == mostThreads {
		d.threads = map[uint32]writer{}
	}
	if d.writers == nil {
		d.writers = map[writer]bool{}
	}
	if !d.writers[w] && len(d.writers) >= mostWriters {
		w = writer{} // nobody watches more, nor keeps them in mind
	}
	d.threads[thread] = w
	if !d.writers[w] && v.drafts[d.name] == d {
		d.writers[w] = true
		d.follow(w)
		v.keep()
	}
}

// Limits of the records of a draft's writers: processes that are watched, and threads that are not asked for their process again.
const (
	mostWriters = 256
	mostThreads = 4096
)

// follow waits for the end of a writer. The caller has mu.
func (d *mountedDraft) follow(w writer) {
	v := d.v
	if w == (writer{}) {
		return // it stays among the writers
	}
	pidfd, err := unix.PidfdOpen(w.PID, unix.PIDFD_NONBLOCK)
	if err == nil && writerOf(w.PID) != w {
		err = errors.Join(unix.ESRCH, unix.Close(pidfd))
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return // the same
	}
	v.containers.waits.Go(func() { // ends with the writer, or the volume
		if err == nil {
			f := os.NewFile(uintptr(pidfd), "writer")
			stop := context.AfterFunc(v.containers.ctx, func() { _ = f.Close() }) // it was only asked
			raw, rawErr := f.SyscallConn()
			if rawErr == nil {
				rawErr = raw.Read(func(fd uintptr) bool {
					poll := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
					n, _ := unix.Poll(poll[:], 0) // it does not wait
					return n > 0
				})
			}
			if stop() {
				_ = f.Close() // the same
			}
			if rawErr != nil {
				return // the volume ends
			}
		}
		d.left(w)
	})
}

// left notes that a writer has ended. After the last one the draft does not change.
func (d *mountedDraft) left(w writer) {
	v := d.v
	v.mu.Lock()
	delete(d.writers, w)
	last := len(d.writers) == 0 && v.drafts[d.name] == d
	v.mu.Unlock()
	if last {
		d.publishSaid(v.containers.ctx, d.publishAlone)
	}
}

// processOf gives the process of a thread, 0 where it is gone.
func processOf(thread uint32) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread)) // of no process, where it is gone
	_, after, _ := strings.Cut(string(text), "\nTgid:\t")
	line, _, _ := strings.Cut(after, "\n")
	pid, _ := strconv.Atoi(line)
	return pid
}

// writerOf tells a process from others that have its number earlier or later. Of one that has ended it tells nothing but the number.
func writerOf(pid int) writer {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // the same
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return writer{PID: pid}
	}
	start, _ := strconv.ParseUint(fields[19], 10, 64) // field 22 of proc_pid_stat(5)
	return writer{pid, start}
}
