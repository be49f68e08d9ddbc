// Package roots has the directories of a node where volumes may lie that pods change: checkpoint volumes and KV volumes.
//
//	p := roots.Checkpoints(allowed)               // or roots.KV(allowed)
//	err := p.Check(dir, namespace)                // before anything is recorded: nothing is changed
//	err = p.Make(dir, group)                      // before its daemon starts
//	if roots.Overlap(a, b) { ... }                // two volumes cannot have these at once
//
// An administrator names directories, such as /nvme/ckpt, and volumes lie below them. An inline volume, which any user may
// describe, lies below the directory of its pod's namespace, as in /nvme/ckpt/NAMESPACE/run-1. Missing parts are made. No link
// is followed, and no directory is one of another volume's checkpoints or namespaces.
package roots

import (
	"errors"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// These are names that a checkpoint, a volume that drains and a KV volume have in their directories: checkpoint.ManifestName and
// DrainState of internal/volume/checkpoint, and the lock of internal/volume/kv. They belong to the data on the disk and so never
// change.
const (
	manifest   = ".hbmfs-manifest.json"
	drainState = ".hbmfs-drain"
	kvLock     = ".hbmfs-kv.lock"
)

// Roots are the directories of a node below which volumes of one kind lie.
type Roots struct {
	allowed               []string
	attribute, kind, flag string // as a refusal names them
	mark                  string // a name in the directory of such a volume
}

// Checkpoints are the roots of checkpoint volumes.
func Checkpoints(allowed []string) Roots {
	return Roots{allowed, "source", "checkpoint volume", "--allow-checkpoints", drainState}
}

// KV are the roots of KV volumes.
func KV(allowed []string) Roots { return Roots{allowed, "kv", "KV volume", "--allow-kv", kvLock} }

func (p *Roots) refuse(code codes.Code, dir, format string, args ...any) error {
	return status.Errorf(code, "volume attribute "+p.attribute+"=%s: "+format, append([]any{dir}, args...)...)
}

// Check refuses a directory that no volume of the kind may have. namespace is that of the pod of an inline volume, "" for an
// administrator's volume.
func (p *Roots) Check(dir, namespace string) error {
	return p.walk(dir, namespace, false, func(int) error { return nil })
}

// Make makes the directory, where it is missing, and gives it to a group as Kubernetes does with fsGroup. The group may write,
// and new files there are the group's. An empty group leaves all as it is.
func (p *Roots) Make(dir, group string) error {
	return p.walk(dir, "", true, func(fd int) error {
		if group == "" {
			return nil
		}
		gid, err := strconv.ParseUint(group, 10, 32)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		const wanted = unix.S_ISGID | 0o070
		if st.Gid != uint32(gid) {
			if err := unix.Fchown(fd, -1, int(gid)); err != nil { // which may take S_ISGID away
				return err
			}
		} else if st.Mode&wanted == wanted {
			return nil
		}
		return unix.Fchmod(fd, st.Mode&0o7777|wanted)
	})
}

// walk goes from the allowed directory down to dir, and calls do with it.
func (p *Roots) walk(dir, namespace string, creates bool, do func(fd int) error) error {
	top, names := within(p.allowed, dir)
	if top == "" {
		return p.refuse(codes.FailedPrecondition, dir, "%ss lie below the directories of hbmfs-csi host %s only, and this is not below one of %q", p.kind, p.flag, p.allowed)
	}
	if namespace != "" && (len(names) < 2 || names[0] != namespace) {
		return p.refuse(codes.FailedPrecondition, dir, "an inline %s lies below its namespace's directory: write %s, or use a persistent volume", p.kind, filepath.Join(top, namespace, "NAME"))
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			return p.refuse(codes.InvalidArgument, dir, "%s begins with a dot, as names do that are hbmfs's own: choose another", name)
		}
	}
	at, err := unix.Open(top, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.refuse(codes.FailedPrecondition, dir, "%s cannot be opened on this node: %v", top, err)
	}
	defer func() { _ = unix.Close(at) }() // opened to name it
	for i, name := range names {
		next, err := enter(at, name, creates)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !creates:
			return nil
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
			return p.refuse(codes.FailedPrecondition, dir, "%s is no directory, or a link, which is not followed", name)
		case err != nil:
			return p.refuse(codes.FailedPrecondition, dir, "%s: %v", name, err)
		}
		_ = unix.Close(at) // opened to name it
		at = next
		switch last := i == len(names)-1; {
		case has(at, manifest):
			return p.refuse(codes.FailedPrecondition, dir, "%s is a published checkpoint, in which nothing changes: name another directory", name)
		case !last && has(at, p.mark):
			return p.refuse(codes.FailedPrecondition, dir, "it lies in %s, which is a %s's directory: name one beside it", name, p.kind)
		}
	}
	if err := do(at); err != nil {
		return p.refuse(codes.FailedPrecondition, dir, "it cannot be given to the pod's fsGroup: %v", err)
	}
	return nil
}

// enter opens a directory in another, and makes it if it may.
func enter(at int, name string, creates bool) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_DIRECTORY | unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(at, name, how)
	if creates && errors.Is(err, fs.ErrNotExist) {
		if err = unix.Mkdirat(at, name, 0o755); err == nil || errors.Is(err, fs.ErrExist) {
			fd, err = unix.Openat2(at, name, how)
		}
	}
	return fd, err
}

func has(dir int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// within finds the allowed directory that dir is below, the deepest, and the names from there.
func within(allowed []string, dir string) (top string, names []string) {
	for _, a := range allowed {
		rel, err := filepath.Rel(a, dir)
		if err == nil && rel != "." && filepath.IsLocal(rel) && len(a) > len(top) {
			top, names = a, strings.Split(rel, "/")
		}
	}
	return top, names
}

// Overlap tells whether one of two directories, or destinations of drains, is the other or lies in it. Both are as people write them,
// without links.
func Overlap(a, b string) bool {
	a, b = strings.TrimSuffix(a, "/")+"/", strings.TrimSuffix(b, "/")+"/"
	return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

// SameDestination tells whether two drains would meet: in one bucket of one server, with one run in the other.
func SameDestination(a, b string) bool {
	return a != "" && b != "" && server(a) == server(b) && Overlap(bucket(a), bucket(b))
}

func bucket(address string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(address, "s3://"), "?")
	return path.Clean(name)
}

func server(address string) string {
	_, query, _ := strings.Cut(address, "?")
	options, _ := url.ParseQuery(query) // it was checked
	return strings.TrimSuffix(options.Get("endpoint"), "/")
}
