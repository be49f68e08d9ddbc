package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/mounts"
)

// checkTarget makes sure that a target is a place where kubelet puts volumes, and returns it as the mount table knows it.
func (h *Host) checkTarget(target string) (string, error) {
	if !filepath.IsAbs(target) || filepath.Clean(target) != target {
		return "", status.Errorf(codes.InvalidArgument, "target path %q: want an absolute path without . and ..", target)
	}
	resolved, err := mounts.Resolve(target)
	if err != nil {
		if !missingPath(target) {
			return "", status.Errorf(codes.Internal, "target path %s: %v", target, err)
		}
		resolved = target // where nothing can be, nothing is mounted: see checkPlace
	}
	kubelet := h.opt.KubeletDir
	if real, err := filepath.EvalSymlinks(kubelet); err == nil {
		kubelet = real
	}
	if resolved == kubelet || (!below(resolved, kubelet) && !below(resolved, h.opt.KubeletDir)) {
		return "", status.Errorf(codes.InvalidArgument, "target path %s is not below kubelet's directory %s (hbmfs-csi host --kubelet-dir)", target, h.opt.KubeletDir)
	}
	return resolved, nil
}

// find looks a path up. It does not ask the filesystem that may be mounted there, whose daemon may be stuck or dead.
func find(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd) // opened to find it
	}
	return err
}

// nowhere tells whether an error of a look-up says that nothing is at a path. The path is missing or too long, leads
// through a file or in a circle, or has a NUL in it. So nothing is mounted there that could be found by this path.
func nowhere(err error) bool {
	return slices.ContainsFunc([]error{fs.ErrNotExist, unix.ENAMETOOLONG, unix.ENOTDIR, unix.ELOOP, unix.EINVAL}, func(e error) bool { return errors.Is(err, e) })
}

// checkPlace refuses a target where no directory can be made, before anything of it is recorded.
func checkPlace(target string) error {
	err := find(target)
	if !errors.Is(err, fs.ErrNotExist) {
		if nowhere(err) {
			return status.Errorf(codes.InvalidArgument, "target path %.100q of %d bytes: no directory can be there: %v", target, len(target), err)
		}
		return nil // or mounting there says why not
	}
	if err := find(filepath.Dir(target)); err != nil {
		return status.Errorf(codes.InvalidArgument, "target path %s: there is no directory %s for it", target, filepath.Dir(target))
	}
	return nil
}

// makeTarget makes the directory that a volume is mounted on. Its parent is kubelet's.
func makeTarget(target string) error {
	err := os.Mkdir(target, 0o750)
	if errors.Is(err, fs.ErrExist) {
		info, err := os.Lstat(target)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return status.Errorf(codes.InvalidArgument, "target path %s is no directory but %s: remove it", target, kindOf(info))
		}
		return nil
	}
	return err
}

func kindOf(info fs.FileInfo) string {
	if info.Mode()&fs.ModeSymlink != 0 {
		return "a symbolic link"
	}
	return "a file"
}

// hide takes the volume away from a target, and removes the target, which is empty then. It is right for dead mounts, for
// busy ones, and where nothing is.
func hide(target string) error {
	if err := mounts.Detach(target); err != nil {
		return status.Errorf(codes.FailedPrecondition, "target path: %v", err)
	}
	if info, err := os.Lstat(target); err != nil || !info.IsDir() {
		if nowhere(err) {
			return nil
		}
		return err // another kind of file was not made here, and stays
	}
	return mounts.RemoveDir(target)
}
