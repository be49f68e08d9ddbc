package handover

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// While nobody serves, readers wait for three processes: the daemon that dies, whose threads take turns on busy CPUs until the last of them
// has ended; the keeper; and the next daemon. Where this program may do so, these come before others for that time. The next daemon is
// an ordinary process again soon after it serves.
//
// The kernel tells of a process's end once all its threads have ended. So the daemon has a sentinel, a thread that sleeps, and that the
// scheduler prefers to all others. It ends first, and then the keeper hurries the rest.

const (
	niceMost   = -20
	niceLeast  = 19
	sentinelOn = 1 // SCHED_FIFO's lowest priority
)

// threads lists the threads of a process.
func threads(pid string) (tids []int) {
	names, _ := filepath.Glob("/proc/" + pid + "/task/[0-9]*") // the pattern is sound
	for _, name := range names {
		if tid, err := strconv.Atoi(filepath.Base(name)); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// niceAll sets the nice value of a process's threads, and of its session, where the kernel gives CPU time to sessions. It reports whether
// any thread had another one.
func niceAll(pid string, nice int) (changed bool) {
	_ = os.WriteFile("/proc/"+pid+"/autogroup", []byte(strconv.Itoa(nice)), 0) // it is advice, as all of this
	for _, tid := range threads(pid) {
		if now, err := niceOf(tid); err == nil && now != nice && unix.Setpriority(unix.PRIO_PROCESS, tid, nice) == nil {
			changed = true
		}
	}
	return changed
}

// niceOf returns a thread's nice value.
func niceOf(tid int) (int, error) {
	const most = 20 // the system call returns 20 less the value, so that it is never negative
	n, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
	if err != nil {
		return 0, os.NewSyscallError("getpriority", err)
	}
	return most - n, nil
}

// niceNow returns the nice value of this process, 0 where the kernel does not tell.
func niceNow() int {
	n, _ := niceOf(0)
	return n
}

// hurry has a process come before others.
func hurry(pid int) { niceAll(strconv.Itoa(pid), niceMost) }

// ease makes this process an ordinary one again. Threads that started meanwhile have their maker's settings.
func ease(nice int) {
	for range 10 {
		if !niceAll("self", nice) {
			return
		}
	}
}

// hasten has the threads of a process that was killed come first of all, so that it ends. None of them returns to its program.
func hasten(pid int) {
	for _, tid := range threads(strconv.Itoa(pid)) {
		if unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: sentinelOn}, 0) != nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, niceMost) // advice
		}
	}
}

// sentinel is a thread of this process that ends before all others when the process is killed.
type sentinel struct {
	tid  int // 0 where there is none
	wake int // an eventfd
	over sync.WaitGroup
}

// newSentinel makes a sentinel.
func newSentinel() *sentinel {
	s := &sentinel{}
	var err error
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return s
	}
	there := make(chan int)
	s.over.Go(func() { // ended by relieve
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: sentinelOn, Flags: unix.SCHED_FLAG_RESET_ON_FORK}
		if unix.SchedSetAttr(0, &attr, 0) != nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceMost) // advice
		}
		there <- unix.Gettid()
		var word [8]byte
		for {
			if _, err := unix.Read(s.wake, word[:]); err == nil {
				return
			}
		}
	})
	s.tid = <-there
	return s
}

// relieve ends the sentinel.
func (s *sentinel) relieve() {
	if s == nil || s.tid == 0 {
		return
	}
	s.tid = 0
	_, _ = unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // there is room
	s.over.Wait()
	_ = unix.Close(s.wake) // nobody reads it
}

// watchSentinel returns a descriptor that tells when a thread has ended, -1 where the kernel has none.
func watchSentinel(text string) int {
	const thread = unix.O_EXCL // PIDFD_THREAD, linux/pidfd.h, Linux 6.9
	tid, err := strconv.Atoi(text)
	if err != nil || tid == 0 {
		return -1
	}
	fd, err := unix.PidfdOpen(tid, thread)
	if err != nil {
		return -1
	}
	return fd
}

// said is how a message names a thread.
func (s *sentinel) said() string { return fmt.Sprintf("SENTINEL=%d", s.tid) }
