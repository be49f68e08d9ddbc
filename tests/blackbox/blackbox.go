// Package blackbox drives the built hbmfs binary as its users do: it mounts, finds the daemon and the views, and
// unmounts in any case. The demo and the benchmarks stand on it.
//
// It uses only the user's interfaces (the command line, the mount, /proc), so it tests the product and not
// the packages behind it.
package blackbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// unmountTimeout bounds a polite unmount. After it the mount is detached.
const unmountTimeout = time.Minute

// Binary is a built hbmfs.
type Binary struct{ path string }

// NewBinary returns the hbmfs at path, which must exist and be executable.
func NewBinary(path string) (Binary, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return Binary{}, fmt.Errorf("find hbmfs: %w", err)
	}
	// Without symlinks it is the path that /proc shows for the daemon.
	abs, err = filepath.EvalSymlinks(abs)
	if err != nil {
		return Binary{}, fmt.Errorf("find hbmfs (`make build` builds it): %w", err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return Binary{}, fmt.Errorf("find hbmfs: %w", err)
	}
	if info.Mode()&0o111 == 0 || info.IsDir() {
		return Binary{}, fmt.Errorf("find hbmfs: %s is not a program", abs)
	}
	return Binary{path: abs}, nil
}

// Path returns where the binary is.
func (b Binary) Path() string { return b.path }

// CanMount returns why this machine cannot mount FUSE filesystems, or nil.
func CanMount() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("no FUSE here: %w", err)
	}
	_ = f.Close() // opened only to learn whether it opens
	if os.Geteuid() == 0 {
		return nil
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return fmt.Errorf("no FUSE for ordinary users here: %w", err)
	}
	return nil
}

// Command returns `hbmfs args...`, not started; it is interrupted when ctx ends, so that it can clean up.
func (b Binary) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = unmountTimeout
	return cmd
}

// Output runs `hbmfs args...` and returns its standard output. The error has its standard error.
func (b Binary) Output(ctx context.Context, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := b.Command(ctx, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, commandError(args, err, stderr.String())
	}
	return out, nil
}

// Mount is a mounted dataset, with the daemon that serves it.
type Mount struct {
	binary Binary
	dir    string
}

// MountCommand is the command that mounts. A flag --checkpoints or --kv, which it takes away, chooses that of a volume.
func MountCommand(flags *[]string) []string {
	for flag, command := range map[string]string{"--checkpoints": "checkpoint", "--kv": "kv"} {
		if i := slices.Index(*flags, flag); i >= 0 {
			*flags = slices.Delete(slices.Clone(*flags), i, i+1)
			return []string{command, "mount"}
		}
	}
	return []string{"mount"}
}

// Mount mounts source on dir, which must exist, and returns when the mount is ready. Close it.
func (b Binary) Mount(ctx context.Context, source, dir string, flags ...string) (*Mount, error) {
	args := append(append(MountCommand(&flags), flags...), source, dir)
	// A pipe would be inherited by the daemon, and waiting for its end would wait for the daemon's.
	messages, err := os.CreateTemp("", "hbmfs-mount-*.log")
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", source, err)
	}
	defer func() {
		_ = messages.Close()
		_ = os.Remove(messages.Name())
	}()
	cmd := b.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = messages, messages
	m := &Mount{binary: b, dir: dir}
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(messages.Name()) // the error stands without it
		// An interrupted mount may have come up all the same.
		return nil, errors.Join(commandError(args, err, string(said)), m.Close())
	}
	mounted, err := IsMounted(dir)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if !mounted {
		return nil, fmt.Errorf("hbmfs mount returned success, but nothing is mounted on %s", dir)
	}
	return m, nil
}

// At returns a mount that somebody else has made, or will make, on dir.
func (b Binary) At(dir string) *Mount { return &Mount{binary: b, dir: dir} }

// Path returns the path of a file in the mount.
func (m *Mount) Path(elem ...string) string {
	return filepath.Join(append([]string{m.dir}, elem...)...)
}

// View returns the path of the first view called name, wherever below .hbmfs/views it is.
func (m *Mount) View(name string) (string, error) {
	var found string
	views := m.Path(".hbmfs", "views")
	err := filepath.WalkDir(views, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() && entry.Name() == name {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("find view %s: %w", name, err)
	}
	if found == "" {
		return "", fmt.Errorf("find view %s: %s has none", name, views)
	}
	return found, nil
}

// Close unmounts. It ignores that a caller's context has ended, since nothing may stay mounted; when a polite
// unmount fails, it detaches the mount and says so in its error. Closing a mount that is gone does nothing.
func (m *Mount) Close() error {
	mounted, err := IsMounted(m.dir)
	if err != nil || !mounted {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), unmountTimeout)
	defer cancel()
	_, err = m.binary.Output(ctx, "umount", m.dir)
	mounted, lookErr := IsMounted(m.dir)
	if mounted {
		return errors.Join(fmt.Errorf("unmount %s: it is still there", m.dir), err, Detach(m.dir))
	}
	if err = errors.Join(err, lookErr); err != nil {
		return fmt.Errorf("unmount %s: %w", m.dir, err)
	}
	return nil
}

// Detach unmounts dir lazily, as root or through fusermount3.
func Detach(dir string) error {
	if unix.Unmount(dir, unix.MNT_DETACH) == nil {
		return nil
	}
	if out, err := exec.Command("fusermount3", "-u", "-z", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("detach %s: %w: %s", dir, err, bytes.TrimSpace(out))
	}
	return nil
}

// IsMounted tells whether something is mounted on dir. It reads the mount table and never touches dir, which may
// be a dead mount.
func IsMounted(dir string) (bool, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return false, fmt.Errorf("find %s: %w", dir, err)
	}
	// The table has resolved paths; resolving the parent leaves dir itself alone.
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(parent, filepath.Base(abs))
	}
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(abs))
	if err != nil {
		return false, fmt.Errorf("read the mount table: %w", err)
	}
	return len(mounts) > 0, nil
}

// DaemonPID finds the daemon in /proc: it runs our binary and was told our mountpoint.
func (m *Mount) DaemonPID() (int, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, fmt.Errorf("find the daemon of %s: %w", m.dir, err)
	}
	for _, p := range processes {
		exe, err := os.Readlink(filepath.Join(p, "exe"))
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != m.binary.path {
			continue // another's process, or one that has just ended
		}
		cmdline, err := os.ReadFile(filepath.Join(p, "cmdline"))
		if err == nil && bytes.Contains(append(cmdline, 0), []byte(m.dir+"\x00")) {
			return strconv.Atoi(filepath.Base(p))
		}
	}
	return 0, fmt.Errorf("find the daemon of %s: no process runs %s for it", m.dir, m.binary.path)
}

// commandError is one sentence: the failed command and its message.
func commandError(args []string, err error, said string) error {
	said = strings.TrimSpace(said)
	if said == "" {
		return fmt.Errorf("hbmfs %s: %w", args[0], err)
	}
	return fmt.Errorf("hbmfs %s: %w: %s", args[0], err, said)
}
