package volume_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// posixCases are things that programs do in a directory. Each gives a text of what it saw, that must be the same in a draft as in a plain
// directory. Links are not among them: drafts refuse them.
var posixCases = []struct {
	name string
	do   func(dir string) string
}{
	{"create, write, read", func(d string) string {
		err := os.WriteFile(d+"/f", []byte("hello"), 0o644)
		text, readErr := os.ReadFile(d + "/f")
		return say(err, string(text), readErr, sizeOf(d+"/f"))
	}},
	{"create exclusively twice", func(d string) string {
		return say(openFlags(d+"/f", os.O_CREATE|os.O_EXCL|os.O_WRONLY), openFlags(d+"/f", os.O_CREATE|os.O_EXCL|os.O_WRONLY))
	}},
	{"create below nothing", func(d string) string { return say(openFlags(d+"/none/f", os.O_CREATE|os.O_WRONLY)) }},
	{"create below a file", func(d string) string {
		return say(os.WriteFile(d+"/f", nil, 0o644), openFlags(d+"/f/g", os.O_CREATE|os.O_WRONLY))
	}},
	{"modes and umask", func(d string) string {
		out := ""
		for _, mask := range []int{0, 0o022, 0o077, 0o027} {
			old := unix.Umask(mask)
			for _, mode := range []os.FileMode{0o666, 0o777, 0o640, 0o200, 0} {
				name := fmt.Sprintf("%s/f%o-%o", d, mask, mode)
				f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, mode)
				out += say(err)
				if err == nil {
					_, err = f.WriteString("x")
					out += say(err, f.Close(), modeOf(name))
				}
				out += say(os.Mkdir(name+"d", mode), modeOf(name+"d"))
			}
			unix.Umask(old)
		}
		return out
	}},
	{"mknod of a plain file", func(d string) string {
		return say(unix.Mknod(d+"/f", unix.S_IFREG|0o600, 0), modeOf(d+"/f"), unix.Mknod(d+"/f", unix.S_IFREG|0o600, 0))
	}},
	{"chmod and chown", func(d string) string {
		out := say(os.WriteFile(d+"/f", nil, 0o644))
		for _, mode := range []os.FileMode{0, 0o400, 0o755, 0o600, 0o777} {
			out += say(os.Chmod(d+"/f", mode), modeOf(d+"/f"))
		}
		return out + say(os.Chown(d+"/f", 12, 34), ownersOf(d+"/f"), os.Chown(d+"/f", -1, 56), ownersOf(d+"/f"))
	}},
	{"a group is inherited", func(d string) string {
		out := say(os.Mkdir(d+"/s", 0o755), os.Chown(d+"/s", 0, 77), unix.Chmod(d+"/s", 0o2775), os.Mkdir(d+"/s/t", 0o755), os.WriteFile(d+"/s/f", nil, 0o644))
		for _, name := range []string{"s", "s/t", "s/f"} {
			out += say(ownersOf(d+"/"+name), modeOf(d+"/"+name))
		}
		return out
	}},
	{"times", func(d string) string {
		out := say(os.WriteFile(d+"/f", nil, 0o644), unix.UtimesNanoAt(unix.AT_FDCWD, d+"/f", []unix.Timespec{{Sec: 123, Nsec: 456}, {Sec: 789, Nsec: 12}}, 0), timesOf(d+"/f"))
		out += say(unix.UtimesNanoAt(unix.AT_FDCWD, d+"/f", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: 5}}, 0), timesOf(d+"/f"))
		return out
	}},
	{"a write sets the time", func(d string) string {
		f, err := os.Create(d + "/f")
		if err != nil {
			return say(err)
		}
		out := say(unix.Futimes(int(f.Fd()), make([]unix.Timeval, 2)))
		_, err = f.WriteString("x")
		return out + say(err, strings.HasSuffix(timesOf(d+"/f"), " 0 0"), f.Close())
	}},
	{"append", func(d string) string {
		out := ""
		for i := range 3 {
			f, err := os.OpenFile(d+"/f", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			if err != nil {
				return say(err)
			}
			_, err = fmt.Fprintf(f, "line %d\n", i)
			at, _ := f.Seek(0, io.SeekCurrent)
			out += say(err, at, f.Close(), sizeOf(d+"/f"))
		}
		text, err := os.ReadFile(d + "/f")
		return out + say(string(text), err)
	}},
	{"append from two descriptors", func(d string) string {
		a, aErr := os.OpenFile(d+"/f", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		b, bErr := os.OpenFile(d+"/f", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if aErr != nil || bErr != nil {
			return say(aErr, bErr)
		}
		for range 5 {
			_, _ = a.WriteString("a") // the text shows it
			_, _ = b.WriteString("b")
		}
		text, err := os.ReadFile(d + "/f")
		return say(string(text), err, a.Close(), b.Close())
	}},
	{"append and pwrite", func(d string) string {
		fd, err := unix.Open(d+"/f", unix.O_CREAT|unix.O_APPEND|unix.O_RDWR, 0o644)
		_, e1 := unix.Write(fd, []byte("12345"))
		n, e2 := unix.Pwrite(fd, []byte("xy"), 1) // Linux appends
		text, e3 := os.ReadFile(d + "/f")
		return say(err, e1, n, e2, string(text), e3, unix.Close(fd))
	}},
	{"open and cut", func(d string) string {
		out := say(os.WriteFile(d+"/f", []byte("long text"), 0o644), openFlags(d+"/f", os.O_WRONLY|os.O_TRUNC), sizeOf(d+"/f"))
		return out + say(os.WriteFile(d+"/f", []byte("long"), 0o644), openFlags(d+"/f", os.O_CREATE|os.O_RDWR|os.O_TRUNC), sizeOf(d+"/f"))
	}},
	{"truncate", func(d string) string {
		out := say(os.WriteFile(d+"/f", []byte("0123456789"), 0o644))
		for _, size := range []int64{4, 0, 100, 3 << 20, 17} {
			out += say(os.Truncate(d+"/f", size), sizeOf(d+"/f"))
		}
		text, err := os.ReadFile(d + "/f")
		return out + say(text, err, os.Truncate(d+"/f", -1), os.Truncate(d+"/none", 1), os.Truncate(d, 1))
	}},
	{"ftruncate of what is open", func(d string) string {
		f, err := os.OpenFile(d+"/f", os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return say(err)
		}
		_, e1 := f.WriteString("0123456789")
		e2 := f.Truncate(3)
		_, e3 := f.WriteString("x") // at 10, behind a hole
		text, e4 := os.ReadFile(d + "/f")
		r, e5 := os.Open(d + "/f")
		return say(e1, e2, e3, text, e4, e5, unix.Ftruncate(int(r.Fd()), 1), r.Close(), f.Chmod(0), f.Truncate(1), f.Close(), sizeOf(d+"/f"))
	}},
	{"holes", func(d string) string {
		f, err := os.Create(d + "/f")
		if err != nil {
			return say(err)
		}
		_, e1 := f.WriteAt([]byte("end"), 1<<20)
		out := say(e1, sizeOf(d+"/f"))
		for _, from := range []int64{0, 5, 1 << 20} {
			data, e2 := unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
			hole, e3 := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
			out += say(data, e2, hole, e3)
		}
		_, e4 := unix.Seek(int(f.Fd()), 2<<20, unix.SEEK_DATA)
		part := make([]byte, 8)
		n, e5 := f.ReadAt(part, 1<<20-5)
		return out + say(e4, n, e5, part, f.Close())
	}},
	{"a directory that is removed while it is open", func(d string) string {
		out := ""
		for _, remove := range []func() error{
			func() error { return os.Remove(d + "/sub") },
			func() error { return errors.Join(os.Mkdir(d+"/other", 0o755), os.Rename(d+"/other", d+"/sub")) },
		} {
			err := os.Mkdir(d+"/sub", 0o751)
			f, e1 := os.Open(d + "/sub")
			out += say(err, e1, remove(), os.Mkdir(d+"/new", 0o755)) // on some disks new gets the inode number
			var st unix.Stat_t
			e2 := unix.Fstat(int(f.Fd()), &st)
			names, e3 := f.Readdirnames(-1)
			out += say(e2, st.Nlink, st.Mode, names, e3, f.Sync(), unix.Mkdirat(int(f.Fd()), "x", 0o755), f.Chmod(0o700), f.Close())
			out += say(os.Remove(d+"/new"), os.RemoveAll(d+"/sub"))
		}
		return out
	}},
	{"allocate and punch", func(d string) string {
		f, err := os.Create(d + "/f")
		if err != nil {
			return say(err)
		}
		fd := int(f.Fd())
		_, e0 := f.Write(bytes.Repeat([]byte("x"), 64<<10))
		out := say(e0, unix.Fallocate(fd, 0, 0, 1<<20), sizeOf(d+"/f"), unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 1<<20, 1<<20), sizeOf(d+"/f"))
		out += say(unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 8192), sizeOf(d+"/f"))
		text, e1 := os.ReadFile(d + "/f")
		return out + say(e1, bytes.Count(text, []byte("x")), len(text), f.Close())
	}},
	{"mapped writes", func(d string) string {
		f, err := os.OpenFile(d+"/f", os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return say(err)
		}
		out := say(f.Truncate(3 << 12))
		m, err := unix.Mmap(int(f.Fd()), 0, 3<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return out + say(err)
		}
		copy(m[4090:], "across a page")
		_, e1 := f.WriteAt([]byte("written"), 100)
		out += say(e1, strings.Clone(string(m[100:107])))
		text, e2 := os.ReadFile(d + "/f")
		out += say(e2, string(text[4090:4103]), unix.Msync(m, unix.MS_SYNC), f.Close())
		m[0] = '!' // the mapping outlives its descriptor
		out += say(unix.Munmap(m))
		text, e3 := os.ReadFile(d + "/f")
		return out + say(e3, text[0], len(text))
	}},
	{"two writers and a reader of one file", func(d string) string {
		w, e1 := os.OpenFile(d+"/f", os.O_CREATE|os.O_RDWR, 0o644)
		x, e2 := os.OpenFile(d+"/f", os.O_WRONLY, 0)
		r, e3 := os.Open(d + "/f")
		if e1 != nil || e2 != nil || e3 != nil {
			return say(e1, e2, e3)
		}
		_, e4 := w.WriteString("first")
		_, e5 := x.WriteAt([]byte("SECOND"), 3)
		text, e6 := io.ReadAll(r)
		info, e7 := r.Stat()
		return say(e4, e5, string(text), e6, info.Size(), e7, w.Close(), x.Close(), r.Close())
	}},
	{"direct writes", func(d string) string {
		fd, err := unix.Open(d+"/f", unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o644)
		if err != nil {
			return say(err)
		}
		page, e1 := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		copy(page, "direct")
		n, e2 := unix.Pwrite(fd, page, 4096)
		m, e3 := unix.Pread(fd, page, 4096)
		seen := say(e1, n, e2, m, e3, string(page[:6]), sizeOf(d+"/f"))
		return seen + say(unix.Close(fd), unix.Munmap(page))
	}},
	{"vectors and copies", func(d string) string {
		f, err := os.Create(d + "/f")
		if err != nil {
			return say(err)
		}
		n, e1 := unix.Pwritev(int(f.Fd()), [][]byte{[]byte("one"), []byte("two")}, 2)
		g, e2 := os.Create(d + "/g")
		r, e3 := os.Open(d + "/f")
		if e2 != nil || e3 != nil {
			return say(e2, e3)
		}
		copied, e4 := io.Copy(g, r) // copy_file_range(2)
		text, e5 := os.ReadFile(d + "/g")
		return say(n, e1, copied, e4, text, e5, f.Close(), g.Close(), r.Close())
	}},
	{"rename", func(d string) string {
		out := say(os.WriteFile(d+"/a", []byte("A"), 0o644), os.Rename(d+"/a", d+"/b"), names(d), os.Rename(d+"/a", d+"/c"))
		out += say(os.WriteFile(d+"/c", []byte("C"), 0o644), os.Rename(d+"/b", d+"/c"), names(d))
		text, err := os.ReadFile(d + "/c")
		return out + say(string(text), err, os.Rename(d+"/c", d+"/c"), names(d))
	}},
	{"rename directories", func(d string) string {
		out := say(os.MkdirAll(d+"/x/y", 0o755), os.WriteFile(d+"/x/y/f", []byte("f"), 0o644), os.Mkdir(d+"/empty", 0o755), os.MkdirAll(d+"/full/z", 0o755))
		out += say(os.Rename(d+"/x", d+"/full"), os.Rename(d+"/x", d+"/x/y/z"), os.Rename(d+"/x", d+"/empty"), names(d))
		text, err := os.ReadFile(d + "/empty/y/f")
		out += say(string(text), err, os.WriteFile(d+"/file", nil, 0o644), unix.Rename(d+"/file", d+"/empty"), unix.Rename(d+"/empty", d+"/file"))
		return out + say(os.Rename(d+"/empty/y", d+"/full/y"), names(d+"/full"), names(d+"/empty"))
	}},
	{"rename with flags", func(d string) string {
		out := say(os.WriteFile(d+"/a", []byte("A"), 0o644), os.WriteFile(d+"/b", []byte("BB"), 0o644))
		at := unix.AT_FDCWD
		out += say(unix.Renameat2(at, d+"/a", at, d+"/b", unix.RENAME_NOREPLACE), unix.Renameat2(at, d+"/a", at, d+"/c", unix.RENAME_NOREPLACE), names(d))
		out += say(unix.Renameat2(at, d+"/c", at, d+"/b", unix.RENAME_EXCHANGE), sizeOf(d+"/c"), sizeOf(d+"/b"))
		out += say(os.MkdirAll(d+"/dir/in", 0o755), unix.Renameat2(at, d+"/dir", at, d+"/b", unix.RENAME_EXCHANGE), names(d+"/b"), sizeOf(d+"/dir"))
		return out + say(os.WriteFile(d+"/b/in/f", []byte("deep"), 0o644), names(d+"/b/in"))
	}},
	{"rename what is open", func(d string) string {
		f, err := os.Create(d + "/a")
		if err != nil {
			return say(err)
		}
		_, e1 := f.WriteString("one")
		e2 := os.Rename(d+"/a", d+"/b")
		_, e3 := f.WriteString("two")
		info, e4 := f.Stat()
		g, e5 := os.Create(d + "/a")
		_, e6 := g.WriteString("another")
		text, e7 := os.ReadFile(d + "/b")
		return say(e1, e2, e3, info.Size(), e4, e5, e6, string(text), e7, f.Sync(), f.Close(), g.Close(), sizeOf(d+"/a"))
	}},
	{"replace what is open", func(d string) string {
		e0 := errors.Join(os.WriteFile(d+"/a", []byte("old"), 0o644), os.WriteFile(d+"/b", []byte("newer"), 0o644))
		f, e1 := os.OpenFile(d+"/a", os.O_RDWR, 0)
		e2 := os.Rename(d+"/b", d+"/a")
		old := make([]byte, 3)
		_, e3 := f.ReadAt(old, 0)
		info, e4 := f.Stat()
		_, e5 := f.WriteAt([]byte("OLD!"), 0)
		text, e6 := os.ReadFile(d + "/a")
		return say(e0, e1, e2, string(old), e3, info.Size(), e4, info.Sys().(*syscall.Stat_t).Nlink, e5, string(text), e6, f.Truncate(2), f.Sync(), f.Close())
	}},
	{"unlink", func(d string) string {
		return say(os.WriteFile(d+"/f", nil, 0o644), unix.Unlink(d+"/f"), unix.Unlink(d+"/f"), os.Mkdir(d+"/s", 0o755), unix.Unlink(d+"/s"), names(d))
	}},
	{"unlink what is open", func(d string) string {
		f, err := os.Create(d + "/f")
		if err != nil {
			return say(err)
		}
		_, e1 := f.WriteString("still there")
		e2 := os.Remove(d + "/f")
		text := make([]byte, 11)
		_, e3 := f.ReadAt(text, 0)
		_, e4 := f.WriteString(", and more")
		info, e5 := f.Stat()
		e6, e7 := f.Truncate(5), f.Sync()
		after, e8 := f.Stat()
		e9 := os.WriteFile(d+"/f", []byte("a new one"), 0o644)
		return say(e1, e2, string(text), e3, e4, info.Size(), e5, info.Sys().(*syscall.Stat_t).Nlink, e6, e7, after.Size(), e8, e9, f.Close(), sizeOf(d+"/f"))
	}},
	{"inode numbers come again", func(d string) string {
		out := ""
		for i := range 50 { // the filesystem gives a number again at once
			name := fmt.Sprintf("%s/f%d", d, i%3)
			text := strings.Repeat("x", i)
			out += say(os.WriteFile(name, []byte(text), 0o644), sizeOf(name))
			if i%2 == 0 {
				out += say(os.Remove(name), os.Mkdir(name, 0o755), names(name), os.Remove(name))
			}
		}
		return out + names(d)
	}},
	{"directories", func(d string) string {
		out := say(os.Mkdir(d+"/a", 0o755), os.Mkdir(d+"/a", 0o755), os.MkdirAll(d+"/a/b/c", 0o700), unix.Rmdir(d+"/a"), unix.Rmdir(d+"/a/b/c"), names(d+"/a/b"), unix.Rmdir(d+"/none"))
		return out + say(os.WriteFile(d+"/f", nil, 0o644), unix.Rmdir(d+"/f"), os.RemoveAll(d+"/a"), names(d))
	}},
	{"many names", func(d string) string {
		for i := range 700 {
			if err := os.WriteFile(fmt.Sprintf("%s/file-with-a-rather-long-name-%04d", d, i), nil, 0o644); err != nil {
				return say(err)
			}
		}
		out := say(len(strings.Fields(names(d))))
		return out + say(os.RemoveAll(d+"/."), len(strings.Fields(names(d))))
	}},
	{"long and odd names", func(d string) string {
		out := ""
		for _, name := range []string{strings.Repeat("n", 255), strings.Repeat("n", 256), "with space", ".dot", "ü", "-rf"} {
			out += say(os.WriteFile(d+"/"+name, nil, 0o644))
		}
		return out + names(d)
	}},
	{"rights of an open file", func(d string) string {
		r, e1 := unix.Open(d+"/f", unix.O_CREAT|unix.O_RDONLY, 0o644)
		_, e2 := unix.Write(r, []byte("x"))
		w, e3 := unix.Open(d+"/f", unix.O_WRONLY, 0)
		_, e4 := unix.Read(w, make([]byte, 1))
		_, e5 := unix.Open(d+"/f", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		_, e6 := unix.Open(d, unix.O_WRONLY, 0)
		return say(e1, e2, e3, e4, e5, e6, unix.Close(r), unix.Close(w))
	}},
	{"sync", func(d string) string {
		f, err := os.Create(d + "/f")
		if err != nil {
			return say(err)
		}
		_, e1 := f.WriteString("safe")
		dir, e2 := os.Open(d)
		return say(e1, f.Sync(), unix.Fdatasync(int(f.Fd())), unix.SyncFileRange(int(f.Fd()), 0, 0, 0), e2, dir.Sync(), dir.Close(), f.Close())
	}},
	{"locks", func(d string) string {
		a, e1 := os.Create(d + "/f")
		b, e2 := os.Open(d + "/f")
		if e1 != nil || e2 != nil {
			return say(e1, e2)
		}
		out := say(unix.Flock(int(a.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB), a.Close(), unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB))
		return out + say(b.Close())
	}},
	{"a program in it runs", func(d string) string {
		return say(os.WriteFile(d+"/run", []byte("#!/bin/sh\necho ran\n"), 0o755), modeOf(d+"/run"), unix.Access(d+"/run", unix.X_OK), unix.Access(d+"/none", unix.F_OK))
	}},
	{"a working directory", func(d string) string {
		fd, e0 := unix.Open(d, unix.O_PATH|unix.O_DIRECTORY, 0)
		out := say(e0, unix.Mkdirat(fd, "s", 0o755))
		s, e1 := unix.Openat(fd, "s", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		f, e2 := unix.Openat(s, "f", unix.O_CREAT|unix.O_RDWR, 0o644)
		e3 := unix.Renameat(fd, "s", fd, "t")
		g, e4 := unix.Openat(s, "g", unix.O_CREAT|unix.O_RDWR, 0o644) // its directory has another name by now
		return out + say(e1, e2, e3, e4, names(d+"/t"), unix.Close(fd), unix.Close(s), unix.Close(f), unix.Close(g))
	}},
}

func openFlags(path string, flags int) error {
	f, err := os.OpenFile(path, flags, 0o644)
	if err == nil {
		err = f.Close()
	}
	return err
}

// say puts what a program saw into words: errors by their errno.
func say(seen ...any) string {
	var words []string
	for _, s := range seen {
		var errno syscall.Errno
		switch err, _ := s.(error); {
		case err == nil:
			words = append(words, fmt.Sprintf("%q", fmt.Sprint(s)))
		case errors.As(err, &errno):
			words = append(words, unix.ErrnoName(errno))
		default:
			words = append(words, err.Error())
		}
	}
	return strings.Join(words, " ") + "\n"
}

func sizeOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return say(err)
	}
	return fmt.Sprint(info.Size(), info.Sys().(*syscall.Stat_t).Nlink)
}

func ownersOf(path string) string {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return say(err, fmt.Sprint(st.Uid, st.Gid))
}

func timesOf(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return say(err)
	}
	return fmt.Sprint(st.Atim.Sec, st.Atim.Nsec, st.Mtim.Sec, st.Mtim.Nsec)
}

func modeOf(path string) string {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return say(err, fmt.Sprintf("%o", st.Mode))
}

func names(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return say(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, fmt.Sprintf("%q%v", e.Name(), e.Type()))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestPOSIX does the same in a draft and in a directory of the same filesystem.
func TestPOSIX(t *testing.T) {
	v := mount(t)
	posix(t, v)
}

func posix(t *testing.T, v *volumetest.Volume) {
	t.Helper()
	beside := suite.NewDir(t)
	draft := v.Draft(t, "posix", nil)
	for i, c := range posixCases {
		t.Run(c.name, func(t *testing.T) {
			plain, here := filepath.Join(beside, strconv.Itoa(i)), filepath.Join(draft, strconv.Itoa(i))
			blackbox.Must(t, os.Mkdir(plain, 0o755))
			blackbox.Must(t, os.Mkdir(here, 0o755))
			want := strings.ReplaceAll(c.do(plain), plain, "DIR")
			got := strings.ReplaceAll(c.do(here), here, "DIR")
			if got != want {
				a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
				for k := range a {
					if k >= len(b) || a[k] != b[k] {
						t.Errorf("line %d\nthe directory: %s\nthe draft:     %s", k, a[k], append(b, make([]string, k+1)...)[k])
						break
					}
				}
			}
		})
	}
}
