package mountpoint

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

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// ErrBusy says that a mount cannot be taken away because something is open in it.
var ErrBusy = errors.New("the mount is in use")

// busyTime is how long a mount may stay busy by processes that only look at it, such as hbmfs top.
const busyTime = time.Second

// Unmount takes the mount at point away. A mount in use gives an error that wraps ErrBusy and names the processes.
func Unmount(point string) error {
	for end := time.Now().Add(busyTime); ; time.Sleep(pause.Look) {
		err := unmount(point, 0)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if time.Now().After(end) {
			return busy(point)
		}
	}
}

// Detach takes the mount out of the tree now. Open files go on until they are closed.
func Detach(point string) error { return unmount(point, unix.MNT_DETACH) }

// Abort ends the filesystem of a mount, wherever else it is mounted, and takes the mount out of the tree. Calls that wait
// for the daemon fail. Files open with passthrough, their mappings and readers' descriptors go on.
func Abort(mount *mountinfo.Info) error {
	if os.Geteuid() == 0 {
		return unmount(mount.Mountpoint, unix.MNT_DETACH|unix.MNT_FORCE)
	}
	// An ordinary user aborts by fusectl. Where that is not mounted, the end of the daemon ends the filesystem.
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
	case err != nil && strings.Contains(string(out), "not found in /etc/mtab"): // as fusermount3 says of the mounts of others
		return fmt.Errorf("unmount %s: another user mounted it: have that user or root do it", point)
	case err != nil:
		return fmt.Errorf("unmount %s: %s", point, strings.TrimSpace(string(out)))
	}
	return nil
}

// busy makes the error of a mount that is in use.
func busy(point string) error {
	found, err := uses(point)
	if err != nil || len(found) == 0 {
		return fmt.Errorf("unmount %s: %w, by a process that cannot be seen from here (another namespace, or the kernel)", point, ErrBusy)
	}
	names := make([]string, len(found))
	for i, u := range found {
		names[i] = u.String()
	}
	return fmt.Errorf("unmount %s: %w by %s: end it, or use --lazy", point, ErrBusy, strings.Join(names, ", "))
}

// use is a process's use of a mount, which keeps the mount busy.
type use struct {
	PID     int
	Command string
	How     string // a path that is open or mapped, or "its working directory"
}

func (u use) String() string { return fmt.Sprintf("%s (pid %d, %s)", u.Command, u.PID, u.How) }

// uses finds the processes that have a file of the mount open or mapped, or work in it. It asks /proc alone, since looking
// at the files themselves would hang on a dead daemon. Only root sees other users' processes.
func uses(point string) ([]use, error) {
	info, err := At(point)
	if err != nil || info == nil {
		return nil, err
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []use
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() { // this one has its working directory of a shell, which is named
			continue
		}
		if how := useOf(filepath.Join("/proc", p.Name()), info); how != "" {
			command, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "comm"))
			found = append(found, use{pid, strings.TrimSpace(string(command)), how})
		}
	}
	return found, nil
}

// useOf says how a process uses a mount, "" for nothing.
func useOf(proc string, info *mountinfo.Info) string {
	for link, how := range map[string]string{"cwd": "its working directory", "root": "its root directory"} {
		if path, err := os.Readlink(filepath.Join(proc, link)); err == nil && below(path, info.Mountpoint) {
			return how
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
