package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/sys/trust"
	"github.com/hbmfs/hbmfs/layout"
)

// publish gives a filled segment its name. If the disk fails in it, the segment is given up.
func (f *fill) publish(ctx context.Context) {
	s := f.store
	_, span := trace.Child(ctx, "publish")
	var o *layout.Object
	err := errLost
	if f.use() { // a reader that finds bytes lost closes it
		o, err = f.link()
		f.unuse()
	}
	span.Text("object", f.object.Name).Int("offset", f.start).Int("bytes", f.size).End(class(err))
	var local *localError
	switch {
	case err == nil:
		s.ledger.published(f.entry, f.size, o)
		s.stats.published.Add(1)
		f.origin.compareSoon(f.origin.file(f.object), f.object)
	case errors.As(err, &local):
		s.health.fail(err)
		s.ledger.drop(f.entry)
	default: // another process has evicted it since
		s.ledger.drop(f.entry)
	}
	f.close()
}

// link writes the header, syncs, and links the file to its name. Data, header and name are on the disk when it returns. Where another
// process was first, o is nil, and who reads its segment looks into it.
func (f *fill) link() (o *layout.Object, err error) {
	s, name := f.store, f.entry.key.name()
	if err := f.sumRest(); err != nil {
		return nil, err
	}
	h := header{key: &f.entry.key, size: f.size, offset: f.start, object: f.object.Size, source: f.origin.source, name: f.object.Name, version: f.object.Version, sums: f.sums}
	if err := unix.Fsetxattr(f.fd, xattrName, h.append(nil), 0); err != nil {
		return nil, &localError{"write a segment's header", err}
	}
	if err := f.sync(); err != nil {
		return nil, err
	}
	dir := filepath.Dir(name)
	if err := unix.Mkdirat(s.fd, dir, 0o700); err == nil {
		err = s.syncDir(".")
		if err != nil {
			return nil, err
		}
	} else if !errors.Is(err, unix.EEXIST) {
		return nil, &localError{"make a directory of segments", err}
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.fd), s.fd, name, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EEXIST) {
		return nil, nil
	} else if err != nil {
		return nil, &localError{"publish a segment", err}
	}
	if err := s.syncDir(dir); err != nil {
		return nil, err
	}
	if o, err = s.dir.Object(name); err != nil {
		return nil, err
	}
	return s.own(o), nil
}

// sync makes sure that all bytes are on the disk. It syncs by a descriptor of its own: the other one keeps the errors that readers
// must hear of.
func (f *fill) sync() error {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Fsync(fd)
		_ = unix.Close(fd) // it was only synced
	}
	if err != nil {
		return &localError{"sync a segment", err}
	}
	return f.sound()
}

func (s *Store) syncDir(name string) error {
	fd, err := unix.Openat(s.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Fsync(fd)
		_ = unix.Close(fd) // it was only synced
	}
	if err != nil {
		return &localError{"sync a directory of segments", err}
	}
	return nil
}

// sumRest sums the parts that came in pieces.
func (f *fill) sumRest() (err error) {
	buf := make([]byte, 1<<20)
	for i := range f.sums {
		if f.summed.get(i) {
			continue
		}
		if f.sums[i], err = sumOf(f.fd, f.size, i, buf); err != nil {
			return err
		}
	}
	return nil
}

// sumOf sums the bytes of sum i of a segment.
func sumOf(fd int, size int64, i int, buf []byte) (sum uint32, err error) {
	n := sumBlock(size)
	for at, end := int64(i)*n, min(size, int64(i+1)*n); at < end; {
		p := buf[:min(int64(len(buf)), end-at)]
		if err := readFull(fd, p, at); err != nil {
			return 0, err
		}
		sum = crc32.Update(sum, castagnoli(), p)
		at += int64(len(p))
	}
	return sum, nil
}

func readFull(fd int, p []byte, off int64) error { return readBy(unix.Pread, fd, p, off) }

// readBy fills p by calls of pread.
func readBy(pread func(fd int, p []byte, off int64) (int, error), fd int, p []byte, off int64) error {
	for n := 0; n < len(p); {
		m, err := pread(fd, p[n:], off+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return &localError{"read a segment", err}
		case m == 0:
			return &localError{"read a segment", fmt.Errorf("it ends at %d", off+int64(n))}
		}
		n += max(m, 0)
	}
	return nil
}

// published is a segment in the directory.
type published struct {
	key   key
	bytes int64
	mtime int64 // ns
	err   error // it cannot even be looked at
}

// list reads the directory of segments. Other files are left alone.
func (s *Store) list() ([]published, error) {
	var out []published
	dirs, err := s.readNames(".")
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if len(dir) != 2 || strings.HasPrefix(dir, ".") {
			continue
		}
		names, err := s.readNames(dir)
		if err != nil {
			return nil, err
		}
		for _, base := range names {
			k, ok := parseName(dir + "/" + base)
			if !ok {
				continue
			}
			var st unix.Stat_t
			err := unix.Fstatat(s.fd, dir+"/"+base, &st, unix.AT_SYMLINK_NOFOLLOW)
			switch {
			case broken(err):
				out = append(out, published{key: k, err: fmt.Errorf("stat: %w", err)})
			case err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > MaxSegment:
				out = append(out, published{key: k, err: fmt.Errorf("it has %d bytes, more than a segment can have", st.Size)})
			case err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG:
				out = append(out, published{key: k, bytes: st.Size, mtime: st.Mtim.Nano()})
			}
		}
	}
	return out, nil
}

// scan enters the published segments that are not on the books, the oldest first, and takes off those that are gone.
func (s *Store) scan() error {
	known := s.ledger.segments() // a segment that is published from here on may be missing in the list
	found, err := s.list()
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b published) int { return cmp.Compare(a.mtime, b.mtime) })
	here := make(map[key]bool, len(found))
	for _, p := range found {
		if p.err != nil {
			continue // not to be read
		}
		here[p.key] = true
		s.ledger.add(p.key, p.bytes)
	}
	for _, e := range known {
		if !here[e.key] {
			s.ledger.dropPublished(e)
		}
	}
	return nil
}

// readNames lists a directory of segments, if nobody else could have put them there.
func (s *Store) readNames(name string) ([]string, error) {
	at, err := unix.Openat(s.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &localError{"list the segments in " + filepath.Join(s.path, name), err}
	}
	f := os.NewFile(uintptr(at), name)
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, &localError{"list the segments", err}
	}
	if err := trust.File(&st); err != nil {
		return nil, fmt.Errorf("list the segments in %s: %w: remove it", filepath.Join(s.path, name), err)
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, &localError{"list the segments", err}
	}
	return names, nil
}
