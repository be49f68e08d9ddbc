package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// lock is the right to work on the names of one checkpoint.
type lock struct {
	dir  *os.Root
	base string
	file *os.File
}

// A lock that is taken is asked for again: who lists a directory holds it for a moment.
const (
	lockTries = 20
	lockPause = 10 * time.Millisecond
)

// take locks a name. [ErrBusy] says which process has the lock.
func take(ctx context.Context, dir *os.Root, name string, of trust) (*lock, error) {
	base := hidden(name, lockEnding)
	for try := 1; ; try++ {
		l, err := takeOnce(dir, base, of)
		switch {
		case err == nil && l != nil:
			return l, nil
		case err != nil && (!errors.Is(err, ErrBusy) || try >= lockTries):
			return nil, err
		case try >= lockTries:
			return nil, failf(ErrBusy, "%s: other processes take and leave its lock all the time: try again", filepath.Join(dir.Name(), name))
		}
		if err := pause.For(ctx, lockPause); err != nil {
			return nil, err
		}
	}
}

// takeOnce gives nil where the lock was removed while it was opened.
func takeOnce(dir *os.Root, base string, of trust) (l *lock, err error) {
	if info, err := dir.Lstat(base); err == nil {
		if err := of.check(dir, base, info, 0); err != nil {
			return nil, err
		}
	}
	f, err := dir.OpenFile(base, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of a checkpoint: %w", err)
	}
	defer func() {
		if l == nil {
			_ = f.Close() // nothing was written
		}
	}()
	opened, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at the lock of a checkpoint: %w", err)
	}
	if err := of.check(dir, base, opened, 0); err != nil {
		return nil, err
	}
	switch err := flock(f, unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, failf(ErrBusy, "%s works on it, and holds %s: wait for it, or end it", holder(f), filepath.Join(dir.Name(), base))
	case errors.Is(err, unix.ESTALE):
		return nil, nil
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOLCK):
		return nil, fmt.Errorf("lock %s: the filesystem has no locks, without which two writers could meet: mount it with them (Lustre: -o flock): %w", filepath.Join(dir.Name(), base), err)
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", filepath.Join(dir.Name(), base), err)
	}
	named, err := dir.Lstat(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look at the lock of a checkpoint: %w", err)
	}
	if err != nil || !os.SameFile(named, opened) {
		return nil, nil
	}
	l = &lock{dir: dir, base: base, file: f}
	if err := l.sign(); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) { // a full disk must not keep checkpoints from being removed
		err = l.file.Truncate(0)
		if err != nil {
			l.release()
			return nil, fmt.Errorf("write the lock of a checkpoint: %w", err)
		}
	} else if err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

// sign writes into the lock who has it.
func (l *lock) sign() error {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	text := fmt.Appendf(nil, "%d %s\n", os.Getpid(), host)
	if _, err := l.file.WriteAt(text, 0); err != nil {
		return fmt.Errorf("write the lock of a checkpoint: %w", err)
	}
	if err := l.file.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("write the lock of a checkpoint: %w", err)
	}
	return nil
}

// release removes the lock while it is held. One that stays harms nobody, and the next holder removes it.
func (l *lock) release() {
	_ = l.dir.Remove(l.base)
	_ = l.file.Close()
}

// holder says who has a lock, as its file tells.
func holder(f *os.File) string {
	buf := make([]byte, 300)
	n, _ := f.ReadAt(buf, 0) // an unreadable owner is unknown
	var pid int
	var host string
	if _, err := fmt.Sscanf(string(buf[:n]), "%d %s", &pid, &host); err != nil || checkText(host) != nil {
		return "another process"
	}
	return fmt.Sprintf("process %d on %s", pid, host)
}

// held says who has the lock on a name, and is empty where nobody has. Nothing is changed.
func held(dir *os.Root, name string) string {
	base := hidden(name, lockEnding)
	info, err := dir.Lstat(base)
	if err != nil {
		return ""
	}
	if !ours(info) || !info.Mode().IsRegular() {
		return "another user"
	}
	f, err := dir.Open(base)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // and the lock with it
	if errors.Is(flock(f, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return holder(f)
	}
	return ""
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// trust tells whose hidden files are worked on. Names are taken as they are, and no link is followed, in any case.
type trust func(info fs.FileInfo) bool

// check refuses a hidden file that is of another type, or of a user who is not trusted.
func (of trust) check(dir *os.Root, base string, info fs.FileInfo, want fs.FileMode) error {
	path := filepath.Join(dir.Name(), base)
	what := "regular file"
	if want == fs.ModeDir {
		what = "directory"
	}
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		return failf(ErrForeign, "%s is a link, and is not followed: remove it", path)
	case info.Mode().Type() != want:
		return failf(ErrForeign, "%s is no %s, as hbmfs makes it there: remove it", path, what)
	case !of(info):
		return failf(ErrForeign, "%s belongs to another user: choose another name or directory, or be that user", path)
	}
	return nil
}
