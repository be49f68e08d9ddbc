package mounts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// A pod has a mount namespace of its own. Mounts on the node do not change its copy of a volume there; where the pod
// asked for that, they are stacked upon the copy. So a dead mount is replaced in each namespace that has it. A process of
// its own does that. Only one without other threads can be sure where it is, and a path in somebody else's namespace may
// hang the process that walks it.

// Sighting is where a mount is seen in a namespace.
type Sighting struct {
	Path string `json:"path"`
	Root string `json:"root"` // the part of the mount that is seen there

	Writable bool `json:"writable,omitempty"`
}

// Namespace is a mount namespace, by a process in it, with the places where it has dead mounts.
type Namespace struct {
	PID    int
	Places []Sighting
}

// Find looks for mounts of hbmfs with this name and another device than this, in the namespaces of all processes that can
// be seen. It leaves out the path where daemons mount. Only mounts that are not covered by others count.
func Find(name, device, except string) ([]Namespace, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []Namespace
	seen := map[string]bool{}
	for _, proc := range all {
		id, err := os.Readlink(filepath.Join(proc, "ns/mnt"))
		if err != nil || seen[id] {
			continue // it has ended, or has been looked at
		}
		places, err := placesIn(proc, dead(name, device, except))
		if err != nil {
			continue // it has ended; another process may show the same namespace
		}
		seen[id] = true
		if pid, err := strconv.Atoi(filepath.Base(proc)); err == nil && len(places) > 0 {
			found = append(found, Namespace{pid, places})
		}
	}
	return found, nil
}

func dead(name, device, except string) func(*mountinfo.Info) bool {
	return func(m *mountinfo.Info) bool {
		return m.FSType == FSType && m.Source == name && Device(m) != device && m.Mountpoint != except
	}
}

func placesIn(proc string, wanted func(*mountinfo.Info) bool) ([]Sighting, error) {
	f, err := os.Open(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	all, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil || len(all) == 0 {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	var places []Sighting
	for _, m := range uncovered(all) {
		if wanted(m) {
			places = append(places, Sighting{m.Mountpoint, m.Root, !slices.Contains(strings.Split(m.Options, ","), "ro")})
		}
	}
	return places, nil
}

// ReplaceIn replaces dead mounts in a namespace by the mount at path, whose device this is. helper is a command that calls
// [Inside]. Where the volume may be written to, a place that was writable is so again. ReplaceIn returns how many places were
// replaced.
func ReplaceIn(ctx context.Context, ns Namespace, path, device string, writable bool, helper []string) (replaced int, err error) {
	entry, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", ns.PID))
	if err != nil {
		return 0, nil // it has ended
	}
	defer func() { _ = entry.Close() }() // opened to name it
	files := []*os.File{entry}
	var places []Sighting
	for _, p := range ns.Places {
		tree, treeErr := Clone(path, p.Root, device, writable && p.Writable)
		if treeErr != nil { // a part of the volume that is gone
			err = errors.Join(err, treeErr)
			continue
		}
		f := os.NewFile(uintptr(tree.fd), p.Root)
		defer func() { _ = f.Close() }() // the copy goes with it, unless it was attached
		files, places = append(files, f), append(places, p)
	}
	task, jsonErr := json.Marshal(places)
	if jsonErr != nil || len(places) == 0 {
		return 0, errors.Join(err, jsonErr)
	}
	ctx, cancel := context.WithTimeout(ctx, aside.HelperTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, helper[0], helper[1:]...)
	cmd.ExtraFiles = files
	cmd.Stdin = bytes.NewReader(task)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if runErr := cmd.Run(); runErr != nil {
		err = errors.Join(err, fmt.Errorf("replace mounts in the namespace of process %d: %w: %s", ns.PID, runErr, strings.TrimSpace(said.String())))
	}
	return bytes.Count(said.Bytes(), []byte("replaced ")), err
}

// Inside is the work of the helper: descriptor 3 is the namespace, those above it are copies for the places that from
// names. It prints the places that it replaced.
func Inside(from io.Reader, to io.Writer) error {
	var places []Sighting
	if err := json.NewDecoder(from).Decode(&places); err != nil {
		return err
	}
	runtime.LockOSThread() // and never unlocked: this process does nothing else
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the shared working directory: %w", err)
	}
	if err := unix.Setns(3, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace (CAP_SYS_ADMIN and hostPID are needed): %w", err)
	}
	var errs []error
	for i, p := range places {
		if err := enter(filepath.Dir(p.Path)); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			errs = append(errs, err)
			continue
		}
		name := "./" + filepath.Base(p.Path)
		// It may have gone meanwhile. And it may only have the name, and get no copy: a user may have mounted it in a
		// user namespace. Of that the kernel tells root nothing, not even that it is dead (fuse_allow_current_process).
		if !Dead(name) {
			continue
		}
		if err := (&Tree{4 + i}).Replace(name); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.Path, err))
			continue
		}
		fmt.Fprintf(to, "replaced %q\n", p.Path)
	}
	return errors.Join(errs...)
}

// enter makes a directory the working directory. A mount point cannot be renamed where it is seen, but the directories above it can: root of a
// pod may put links in their place at any time. Paths of the mount table have none.
func enter(dir string) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return fmt.Errorf("open %s, without following links: %w", dir, err)
	}
	defer func() { _ = unix.Close(fd) }() // opened to enter it
	return os.NewSyscallError("fchdir", unix.Fchdir(fd))
}
