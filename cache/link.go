package cache

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

// openDir is an open directory on the way from the root to a file.
type openDir struct {
	fd     int
	base   string // its name, where it was passed
	rights Rights
	shared bool // everybody may make files in it, and nobody remove those of others
	passed bool // on the way of a link, and not above it
}

// errNoTarget says that a link leads out of the root, or nowhere.
var errNoTarget = errors.New("the link has no target below the root")

// linkTarget is the file or directory that a symbolic link leads to.
type linkTarget struct {
	at   unix.Stat_t
	perm uint16
	name string   // below the first of the directories from which it was resolved
	by   []Rights // directories that are passed, and are not above the link, and links that not everybody may follow
}

// link lists a symbolic link: as the file that it leads to, or as a link to a directory below the root. above are the
// directories from the root to the link's own.
func (d *Dir) link(l *Listing, above []openDir, name string, link *unix.Stat_t) {
	dir := above[len(above)-1].fd
	to, err := d.resolve(above, path.Base(name))
	switch {
	case err != nil:
		l.leaveOut(name, "symbolic link that leaves the dataset or leads nowhere: left out (mount the directory that holds its target)")
		return
	case to.at.Mode&unix.S_IFMT == unix.S_IFREG:
		l.Objects = append(l.Objects, d.linked(name, to))
		return
	}
	target, err := readlink(dir, path.Base(name))
	if below, ok := d.below(target); ok { // in the mount it is to lead to the mount's own directory
		target = strings.Repeat("../", strings.Count(name, "/")) + cmp.Or(below, ".")
	}
	if err != nil || to.at.Mode&unix.S_IFMT != unix.S_IFDIR {
		l.leaveOut(name, "symbolic link to a special file: left out")
		return
	}
	l.Links = append(l.Links, LinkEntry{name, target, modTime(link)})
}

// linked makes an object of the file that a link leads to. A user who may not pass a directory on the way there may not
// read it. The mount shows the file at the place of the link, where the kernel no longer sees the way.
func (d *Dir) linked(name string, to linkTarget) *layout.Object {
	perm := to.perm
	for _, r := range to.by {
		perm = only(perm, r.Certain(to.at.Uid, to.at.Gid, ToPass))
	}
	return d.object(name, &to.at, perm)
}

// resolve resolves a name as the kernel does, one component at a time and without leaving the root. Only so it learns
// which directories are passed. It has those open, so that nobody can put others in their place meanwhile.
func (d *Dir) resolve(above []openDir, name string) (to linkTarget, err error) {
	way, links := slices.Clone(above), 0
	defer func() { closeAll(way) }()
	for rest := strings.Split(name, "/"); len(rest) > 0; {
		dir, next := way[len(way)-1], rest[0]
		if rest = rest[1:]; next == "" || next == "." {
			continue
		}
		if dir.passed {
			to.by = append(to.by, dir.rights)
		}
		if next == ".." {
			if way = way[:len(way)-1]; len(way) == 0 {
				return to, errNoTarget
			}
			dir.close()
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(dir.fd, next, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return to, err
		}
		switch kind := st.Mode & unix.S_IFMT; {
		case kind == unix.S_IFLNK:
			target, absolute, err := d.follow(dir, next)
			if links++; err != nil || links > mostLinks {
				return to, errors.Join(errNoTarget, err)
			}
			if absolute {
				closeAll(way[1:])
				way = way[:1]
			}
			to.by = append(to.by, dir.mayFollow(&st)...)
			rest = append(strings.Split(target, "/"), rest...)
		case kind == unix.S_IFDIR:
			if dir, err = d.pass(dir.fd, next); err != nil {
				return to, err
			}
			dir.base = next
			way = append(way, dir)
		case len(rest) > 0:
			return to, unix.ENOTDIR
		default:
			to.name = nameOf(way, next)
			if to.at = st; kind == unix.S_IFREG {
				to.perm = d.perm(dir.fd, next, &st)
			}
			return to, nil
		}
	}
	to.at.Mode = unix.S_IFDIR
	return to, nil
}

// follow reads a link. Where absolute is true, the target goes on from the root.
func (d *Dir) follow(dir openDir, name string) (target string, absolute bool, err error) {
	if target, err = readlink(dir.fd, name); err != nil {
		return "", false, err
	}
	if below, ok := d.below(target); ok {
		return below, true, nil
	}
	if path.IsAbs(target) {
		return "", false, errNoTarget
	}
	return target, false, nil
}

// nameOf is the name of a file below the first of the directories on the way to it.
func nameOf(way []openDir, base string) string {
	var parts []string
	for _, p := range way[1:] {
		parts = append(parts, p.base)
	}
	return strings.Join(append(parts, base), "/")
}

// below gives the rest of a link's absolute target after the path of the root. The path is the one by which the root was opened, or the
// one that it has without links. Nobody needs to pass other directories to come to it.
func (d *Dir) below(target string) (rest string, ok bool) {
	for _, root := range d.paths {
		if rest, ok = strings.CutPrefix(target, root); ok && (rest == "" || rest[0] == '/') {
			return strings.TrimLeft(rest, "/"), true
		}
	}
	return "", false
}

// mostLinks is how many links the kernel follows on the way to one file (MAXSYMLINKS).
const mostLinks = 40

// pass opens a directory on the way of a link.
func (d *Dir) pass(at int, name string) (openDir, error) {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return openDir{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd) // it was only looked at
		return openDir{}, err
	}
	p := d.placeOf(fd, &st)
	p.passed = true
	return p, nil
}

// placeOf describes an open directory.
func (d *Dir) placeOf(fd int, st *unix.Stat_t) openDir {
	const shared = unix.S_ISVTX | unix.S_IWOTH
	return openDir{fd: fd, rights: Rights{d.perm(fd, ".", st), st.Uid, st.Gid}, shared: st.Mode&shared == shared}
}

// close closes a directory that was opened for a link.
func (p openDir) close() {
	if p.passed {
		_ = unix.Close(p.fd) // it was only looked through
	}
}

func closeAll(way []openDir) {
	for _, p := range way {
		p.close()
	}
}

// mayFollow returns the rights that the kernel asks for to follow a link in a directory. Where everybody may put links,
// as in /tmp, it follows those of the directory's owner and one's own (fs.protected_symlinks).
func (p openDir) mayFollow(link *unix.Stat_t) []Rights {
	if !p.shared || link.Uid == p.rights.UID {
		return nil
	}
	return []Rights{{Perm: ToPass << 6, UID: link.Uid, GID: link.Gid}}
}

func readlink(at int, name string) (string, error) {
	p := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, p)
	if err != nil {
		return "", err
	}
	return string(p[:n]), nil
}
