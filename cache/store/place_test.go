package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/layout"
)

// long is as much as a header keeps of a name.
var long = strings.Repeat(strings.Repeat("n", 99)+"/", maxText/100)

// alike gives two objects for each of some kinds of names. Both have one size.
func alike() *upstream {
	u := &upstream{data: map[string][]byte{}}
	for i, name := range []string{"a", "b", long + "a", long + "b"} {
		u.data[name] = origintest.Data(mib+5, byte(i))
	}
	return u
}

// filled fills a cache with objects of alike, which may come as a whole, as decoded ones do, and closes it.
func filled(t *testing.T, dir string, u *upstream, opt Options, whole bool) {
	m := mount(t, dir, u, opt)
	m.whole(whole)
	for name := range u.data {
		m.readAll(t, u, name)
	}
	until(t, "all is published", func() bool { s := m.Stats(); return s.Segments == len(u.data) && s.Filling == 0 })
	m.close(t)
}

// whole says how objects come.
func (m *mounted) whole(whole bool) {
	for _, o := range m.objects {
		o.Whole = whole
	}
}

// fileOf is where the first segment of an object lies.
func (m *mounted) fileOf(name string) string {
	return filepath.Join(m.Path(), keyOf(m.origin.file(m.objects[name]).identity, 0).name())
}

// swap gives two files each other's name.
func swap(t *testing.T, a, b string) {
	t.Helper()
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
}

// readings are the ways to the bytes of an object whose segment is published.
func readings(t *testing.T) map[string]func(m *mounted, o *layout.Object) []byte {
	read := func(r io.Reader) []byte {
		p, err := io.ReadAll(r)
		if err != nil {
			t.Error(err)
		}
		return p
	}
	return map[string]func(m *mounted, o *layout.Object) []byte{
		"read": func(_ *mounted, o *layout.Object) []byte { return read(o.Reader(t.Context())) },
		"passthrough": func(m *mounted, o *layout.Object) []byte {
			fd, release, err := m.origin.OpenWhole(t.Context(), o)
			if err != nil {
				t.Error(err)
			}
			if fd < 0 {
				return nil
			}
			defer release()
			f := os.NewFile(uintptr(fd), "segment")
			defer func() { _ = f.Close() }()
			return read(f)
		},
		"extent": func(m *mounted, o *layout.Object) []byte {
			segment, _, _ := m.origin.Lies(o, 0)
			if segment == nil {
				return nil
			}
			return read(segment.Reader(t.Context()))
		},
	}
}

// TestSwappedSegments gives segments of one size each other's place. Verifying names each of them, and no way of reading serves one.
func TestSwappedSegments(t *testing.T) {
	for how, reading := range readings(t) {
		for _, whole := range []bool{false, true} {
			t.Run(fmt.Sprint(how, whole), func(t *testing.T) { swappedSegments(t, reading, whole) })
		}
	}
}

func swappedSegments(t *testing.T, reading func(m *mounted, o *layout.Object) []byte, whole bool) {
	u, dir, opt := alike(), t.TempDir(), Options{Segment: 2 * mib, Size: 1 << 30}
	filled(t, dir, u, opt, whole)
	m := mount(t, dir, u, opt)
	m.whole(whole)
	swap(t, m.fileOf("a"), m.fileOf("b"))
	swap(t, m.fileOf(long+"a"), m.fileOf(long+"b"))
	for _, deep := range []bool{false, true} {
		damaged := 0
		if err := m.Segments(t.Context(), deep, func(g Segment) error {
			if g.Damage != "" {
				damaged++
			}
			return nil
		}); err != nil || damaged != len(u.data) {
			t.Errorf("deep %v: %d of %d swapped segments are damaged, %v", deep, damaged, len(u.data), err)
		}
	}
	for name, want := range u.data {
		if got := reading(m, m.objects[name]); got != nil && string(got) != string(want) {
			t.Errorf("the object %.9s... gives another's bytes", name)
		}
	}
	for name := range u.data {
		m.readAll(t, u, name)
	}
	if s := m.Stats(); s.Corrupt != int64(len(u.data)) {
		t.Errorf("%d segments were found in another's place, %d are", s.Corrupt, len(u.data))
	}
}

// TestScrubFindsSwapped scrubs until both swapped segments are gone.
func TestScrubFindsSwapped(t *testing.T) {
	u, dir, opt := newUpstream(mib, mib), t.TempDir(), Options{Segment: 2 * mib, Size: 1 << 30}
	filled(t, dir, u, opt, false)
	m := mount(t, dir, u, opt)
	swap(t, m.fileOf("0"), m.fileOf("1"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.Scrub(ctx, 1<<40) }()
	until(t, "both are removed", func() bool { return m.Stats().Segments == 0 })
	cancel()
	<-done
}

// TestForeignSegmentIsThere has a file of another object appear at the name of a segment that is about to be published.
func TestForeignSegmentIsThere(t *testing.T) {
	u, opt := newUpstream(mib, mib), Options{Segment: 2 * mib, Size: 1 << 30}
	from, to := t.TempDir(), t.TempDir()
	filled(t, from, u, opt, false)
	other := mount(t, from, u, opt)
	m := mount(t, to, u, opt)
	gate := make(chan struct{})
	u.gate.Store(&gate)
	read := make(chan error)
	go func() {
		_, err := m.objects["0"].ReadAt(t.Context(), make([]byte, 1), 0)
		read <- err
	}()
	until(t, "the fetch began", func() bool { return m.Stats().Filling == 1 })
	if err := os.MkdirAll(filepath.Dir(m.fileOf("0")), 0o700); err != nil {
		t.Fatal(err)
	}
	copyWithHeader(t, other.fileOf("1"), m.fileOf("0"))
	close(gate)
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	m.readAll(t, u, "0")
	until(t, "it is published", func() bool { return m.Stats().Filling == 0 })
	m.readAll(t, u, "0")
}

func copyWithHeader(t *testing.T, from, to string) {
	t.Helper()
	p, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, p, 0o400)
	}
	h := make([]byte, maxHeader)
	n, err2 := unix.Getxattr(from, xattrName, h)
	if err == nil && err2 == nil {
		err = unix.Setxattr(to, xattrName, h[:n], 0)
	}
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
}

// first writes a header as the first version did, which kept no key.
func (h *header) first() []byte {
	b := h.append(nil)
	b = append([]byte("HBS1"), append(b[4:headerFixed:headerFixed], b[headerFixed+len(key{}):len(b)-4]...)...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli()))
}

// TestSegmentsOfTheFirstVersion have headers without a key. Those at their place are read, whatever the size of segments. Others, and
// those whose names are cut, are fetched again.
func TestSegmentsOfTheFirstVersion(t *testing.T) {
	u := alike()
	u.data["c"] = origintest.Data(5*mib+1, 9)
	for _, segment := range []int64{2 * mib, 3 * mib, 64 * mib} {
		t.Run(fmt.Sprint(segment), func(t *testing.T) {
			dir, opt := t.TempDir(), Options{Segment: segment, Size: 1 << 30}
			m := mount(t, dir, u, opt)
			segments := int(4 + (5*mib+segment)/segment)
			for name := range u.data {
				m.readAll(t, u, name)
			}
			until(t, "all is published", func() bool { return m.Stats().Segments == segments })
			if err := m.Segments(t.Context(), false, func(g Segment) error {
				file := filepath.Join(m.Path(), g.File)
				b := make([]byte, maxHeader)
				n, err := unix.Getxattr(file, xattrName, b)
				if err != nil {
					return err
				}
				h, err := parseHeader(b[:n])
				if err != nil {
					return err
				}
				return unix.Setxattr(file, xattrName, h.first(), 0)
			}); err != nil {
				t.Fatal(err)
			}
			m.close(t)
			m = mount(t, dir, u, opt)
			u.fetched.Store(0)
			m.readAll(t, u, "a")
			m.readAll(t, u, "c")
			if n := u.fetched.Load(); n != 0 {
				t.Errorf("%d bytes were fetched again", n)
			}
			m.readAll(t, u, long+"a")
			if n := u.fetched.Load(); n != mib+5 {
				t.Errorf("%d bytes of an object with a long name were fetched again", n)
			}
			swap(t, m.fileOf("b"), m.fileOf(long+"b"))
			m.readAll(t, u, "b")
			m.readAll(t, u, long+"b")
		})
	}
}
