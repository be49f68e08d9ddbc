// Package mountpoint finds the mounts of hbmfs and the processes that serve them, and takes mounts away. It asks /proc and the mount table alone, and
// never the daemon, which may be stuck.
//
//	place, err := mountpoint.Locate(path)            // the mount that path leads to
//	daemon, err := mountpoint.FindDaemon(place.Over) // the process that serves it
package mountpoint

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// ControlName is the directory in the root of every mount that holds status, metrics and views, and SocketName the socket in it. No listing shows it.
const (
	ControlName = ".hbmfs"
	SocketName  = "control"
)

// Location is where a path leads, found without a question to any hbmfs mount, whose daemon may be stuck.
type Location struct {
	Path string          // as the mount table knows it: absolute, and without symbolic links outside of hbmfs mounts
	On   *mountinfo.Info // the topmost mount at Path, nil where Path is no mount point
	Over *mountinfo.Info // the hbmfs mount that answers for Path, nil where none does
	all  []*mountinfo.Info
}

// HBMFS tells whether an hbmfs mount is at the path itself.
func (p *Location) HBMFS() bool { return p.On != nil && isHBMFS(p.On) }

// linksMax is how many symbolic links a path may lead through, as in the kernel.
const linksMax = 40

// Locate follows a path as the kernel does. Below an hbmfs mount it follows no links: its daemon would have to answer.
func Locate(path string) (*Location, error) {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	seen := Uppermost(all)
	if !filepath.IsAbs(path) {
		dir, err := unix.Getwd() // not os.Getwd, which looks at the directory
		if err != nil {
			return nil, err
		}
		path = dir + "/" + path
	}
	p := &Location{Path: "/", all: all}
	rest, links := strings.Split(path, "/"), 0
	for len(rest) > 0 {
		next := filepath.Join(p.Path, rest[0])
		ask := rest[0] != "" && rest[0] != "." && rest[0] != ".." && answersFor(seen, next) == nil
		rest = rest[1:]
		to := ""
		if ask {
			to, _ = os.Readlink(next) // a name that is no link, or not there, stays as it is
		}
		if to == "" {
			p.Path = next
			continue
		}
		if links++; links > linksMax {
			return nil, &os.PathError{Op: "follow", Path: path, Err: unix.ELOOP}
		}
		if filepath.IsAbs(to) {
			p.Path = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	p.On, p.Over = seen[p.Path], answersFor(seen, p.Path)
	return p, nil
}

// answersFor finds the hbmfs mount that a path without links lies in.
func answersFor(seen map[string]*mountinfo.Info, path string) *mountinfo.Info {
	for ; ; path = filepath.Dir(path) {
		i := seen[path]
		switch {
		case i != nil && isHBMFS(i):
			return i
		case i != nil || path == "/":
			return nil
		}
	}
}

// Elsewhere tells where else this mount namespace shows the filesystem that is mounted at the place, "" for nowhere.
func (p *Location) Elsewhere() string {
	for _, i := range p.all {
		if p.On != nil && i.ID != p.On.ID && i.Major == p.On.Major && i.Minor == p.On.Minor {
			return i.Mountpoint
		}
	}
	return ""
}

// fsType is how the kernel names these mounts.
const fsType = "fuse.hbmfs"

// At returns the topmost mount at an absolute path, nil where there is none. It does not touch the filesystem,
// which may be dead, or not served yet.
func At(point string) (*mountinfo.Info, error) {
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
