package fs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// fsType is how the kernel names these mounts.
const fsType = "fuse.hbmfs"

// ErrBusy says that a mount cannot be taken away because something is open in it.
var ErrBusy = errors.New("the mount is in use")

// mountAt returns the topmost mount at an absolute path, nil where there is none. It does not touch the filesystem,
// which may be dead, or not served yet.
func mountAt(point string) (*mountinfo.Info, error) {
	// Not mountinfo's own filter, which stops at the first.
	all, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) { return i.Mountpoint != point, false })
	return Uppermost(all)[point], err
}

// Uppermost finds the mounts that no other covers, by mount point. Their order in the table says nothing, since a mount can be
// put beneath an older one.
func Uppermost(all []*mountinfo.Info) map[string]*mountinfo.Info {
	at, covered, seen := map[int]string{}, map[int]bool{}, map[string]*mountinfo.Info{}
	for _, i := range all {
		at[i.ID] = i.Mountpoint
	}
	for _, i := range all {
		covered[i.Parent] = covered[i.Parent] || at[i.Parent] == i.Mountpoint
	}
	for _, i := range all {
		if !covered[i.ID] {
			seen[i.Mountpoint] = i
		}
	}
	return seen
}

func isHBMFS(info *mountinfo.Info) bool { return info.FSType == fsType }

// passing is how long a mount may be in use by those who only look at it, hbmfs top for one.
const passing = time.Second

// Unmount takes the mount at point away. One that is in use gives an error that wraps ErrBusy and names who holds it.
func Unmount(point string) error {
	const pause = 50 * time.Millisecond
	for end := time.Now().Add(passing); ; time.Sleep(pause) {
		err := unmount(point, 0)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if time.Now().After(end) {
			return busy(point)
		}
	}
}

// Detach takes the mount out of the tree now, and lets those who have files open in it finish.
func Detach(point string) error { return unmount(point, unix.MNT_DETACH) }

// Abort ends the filesystem of a mount, wherever else it is seen, and takes the mount out of the tree: those who wait for its
// daemon get an error. What is open with passthrough, mapped, or held by a reader goes on.
func Abort(mount *mountinfo.Info) error {
	if os.Geteuid() == 0 {
		return unmount(mount.Mountpoint, unix.MNT_DETACH|unix.MNT_FORCE)
	}
	// An ordinary user ends what is his own by way of fusectl. Where that is not mounted, the end of the daemon does it.
	err := os.WriteFile(fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", mount.Minor), []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, Detach(mount.Mountpoint))
}

func unmount(point string, flags int) error {
	err := unix.Unmount(point, flags|unix.UMOUNT_NOFOLLOW)
	if !errors.Is(err, unix.EPERM) {
		if err != nil {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
		return nil
	}
	how := "-u"
	if flags&unix.MNT_DETACH != 0 {
		how = "-uz"
	}
	out, err := exec.Command("fusermount3", how, "--", point).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("unmount %s: fusermount3 is not installed, which ordinary users need: apt install fuse3", point)
	case err != nil && strings.Contains(string(out), "busy"): // its exit code is 1 for everything
		return fmt.Errorf("unmount %s: %w", point, unix.EBUSY)
	case err != nil:
		return fmt.Errorf("unmount %s: %s", point, strings.TrimSpace(string(out)))
	}
	return nil
}

// busy makes the error of a mount that is in use.
func busy(point string) error {
	holders, err := Holders(point)
	if err != nil || len(holders) == 0 {
		return fmt.Errorf("unmount %s: %w, by a process that cannot be seen from here (another namespace, or the kernel)", point, ErrBusy)
	}
	names := make([]string, len(holders))
	for i, h := range holders {
		names[i] = h.String()
	}
	return fmt.Errorf("unmount %s: %w by %s: end it, or use --lazy", point, ErrBusy, strings.Join(names, ", "))
}

// Holder is a process that keeps a mount busy.
type Holder struct {
	PID     int
	Command string
	What    string // what it holds: a path, or "its working directory"
}

func (h Holder) String() string { return fmt.Sprintf("%s (pid %d, %s)", h.Command, h.PID, h.What) }

// Holders finds the processes that have a file of the mount open or mapped, or work in it. It asks /proc alone, since
// looking at the files themselves would hang on a dead daemon. Processes of other users are seen by root only.
func Holders(point string) ([]Holder, error) {
	info, err := mountAt(point)
	if err != nil || info == nil {
		return nil, err
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var holders []Holder
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		if what := held(filepath.Join("/proc", p.Name()), info); what != "" {
			command, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "comm"))
			holders = append(holders, Holder{pid, strings.TrimSpace(string(command)), what})
		}
	}
	return holders, nil
}

// held says what a process holds of a mount, "" for nothing.
func held(proc string, info *mountinfo.Info) string {
	for link, what := range map[string]string{"cwd": "its working directory", "root": "its root directory"} {
		if path, err := os.Readlink(filepath.Join(proc, link)); err == nil && below(path, info.Mountpoint) {
			return what
		}
	}
	fds, _ := os.ReadDir(filepath.Join(proc, "fd"))
	for _, fd := range fds {
		if mountID(filepath.Join(proc, "fdinfo", fd.Name())) != info.ID {
			continue
		}
		path, _ := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		return path + " is open"
	}
	maps, err := os.Open(filepath.Join(proc, "maps"))
	if err != nil {
		return ""
	}
	defer func() { _ = maps.Close() }() // opened for reading: nothing is lost
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if i := strings.IndexByte(lines.Text(), '/'); i >= 0 && below(lines.Text()[i:], info.Mountpoint) {
			return lines.Text()[i:] + " is mapped"
		}
	}
	return ""
}

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// mountID reads the mount of an open file from its fdinfo.
func mountID(fdinfo string) int {
	text, err := os.ReadFile(fdinfo)
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(id))
			if err == nil {
				return n
			}
		}
	}
	return -1
}

// setReadAhead sets how far the kernel reads ahead on the filesystem at point. It needs root.
func setReadAhead(point string, bytes int) error {
	info, err := mountAt(point)
	if err != nil || info == nil {
		return fmt.Errorf("find the mount at %s: %w", point, err)
	}
	name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", info.Major, info.Minor)
	return os.WriteFile(name, []byte(strconv.Itoa(bytes/1024)), 0o644)
}

// sealReadOnly makes the superblock of the mount read-only, now that nothing has to be made in it any more. Otherwise
// each passthrough read would make the kernel forget the access time, and ask for it at the next stat: 48 µs instead
// of 4 for a read and a stat. It needs root.
func sealReadOnly(point string) error {
	fd, err := unix.Fspick(unix.AT_FDCWD, point, unix.FSPICK_CLOEXEC|unix.FSPICK_NO_AUTOMOUNT)
	if err != nil {
		return fmt.Errorf("pick the filesystem at %s: %w", point, err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only for this
	if err := unix.FsconfigSetFlag(fd, "ro"); err != nil {
		return err
	}
	return unix.FsconfigReconfigure(fd)
}
