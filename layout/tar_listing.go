package layout

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"
)

// Bounds of one archive's listing: about 200 bytes and the name for a member.
const (
	maxTarMembers   = 1_000_000
	maxMemberDepth  = 64   // components of a name
	maxMemberPath   = 4095 // bytes of a name, as many as Linux takes
	maxMemberFolder = 255  // bytes of a component

	tarPadding = 1 << 20 // bytes behind the end that are looked at: writers fill up blocks of 10 KiB
)

// tarListing is the members of an archive, by their headers. It holds no data.
type tarListing struct {
	members []tarMember // in the archive's order; a name is there once
	samples int64       // as WebDataset counts them
	skipped []tarSkipped
	ended   bool  // by two blocks of zeros
	after   int64 // where something else follows these, 0 where nothing does

	byName  map[string]int // position in members
	folders map[string]struct{}
	key     string // of the sample that the last member belongs to
}

// tarMember is a regular file whose bytes lie in the archive as they are.
type tarMember struct {
	name         string // clean, relative
	offset, size int64  // of its bytes in the archive
	modTime      time.Time
}

// tarSkipped counts the members that a view cannot show, for one reason.
type tarSkipped struct {
	why   string
	count int
	name  string // of the first
	at    int64  // its header's end
}

// listTar lists the members of an archive.
func listTar(ctx context.Context, o *Object) (*tarListing, error) {
	l := &tarListing{byName: map[string]int{}, folders: map[string]struct{}{}}
	end, err := WalkTar(ctx, o, func(h *tar.Header, offset int64) error { return l.add(o, h, offset) })
	if err != nil {
		return nil, err
	}
	if end >= 2*tarBlock {
		marks, err := readFull(ctx, o, end-2*tarBlock, 2*tarBlock)
		if err != nil {
			return nil, err
		}
		l.ended = len(bytes.Trim(marks, "\x00")) == 0
	}
	if l.ended {
		rest, err := readFull(ctx, o, end, min(o.Size-end, tarPadding))
		if err != nil {
			return nil, err
		}
		if more := bytes.IndexFunc(rest, func(c rune) bool { return c != 0 }); more >= 0 {
			l.after = end + int64(more)
		}
	}
	l.byName, l.folders = nil, nil
	return l, nil
}

// WalkTar calls each with every header of an archive, which is valid until each returns, and with the place where the member's bytes begin. The
// data between the headers is not read. end is where the walk stopped. An archive that is cut short, or damaged, is an error: the
// members that could still be listed would look like the whole.
func WalkTar(ctx context.Context, o *Object, each func(h *tar.Header, offset int64) error) (end int64, err error) {
	r := &windowReader{ctx: ctx, o: o}
	var walk *tar.Reader // of headers that are not plain
	var plain tar.Header
	for known := true; ; { // r.off is where the next header begins, else walk finds it
		at, h, err := r.off, &plain, error(nil)
		if (!known || !r.plain(h)) && r.err == nil {
			if known {
				walk = tar.NewReader(r)
			}
			h, err = walk.Next()
		}
		switch {
		case r.err != nil:
			return 0, fmt.Errorf("read %s at %d: %w", o.Name, r.off, r.err)
		case errors.Is(err, io.EOF):
			return r.off, nil
		case err != nil && !errors.Is(err, tar.ErrInsecurePath): // names are judged by each
			return 0, corruptf(o, at, "the member that begins about here cannot be read: %v", err)
		}
		known = isRegular(h) && !IsSparse(h)
		if known && (h.Size < 0 || r.off > o.Size-h.Size) {
			return 0, corruptf(o, r.off, "member %.80q has %d bytes: the archive ends after %d", h.Name, h.Size, o.Size-r.off)
		}
		if err := each(h, r.off); err != nil {
			return 0, err
		}
		if known {
			r.off += h.Size
			r.off += min(-r.off&(tarBlock-1), o.Size-r.off)
		}
	}
}

// isRegular reports whether a member is a file.
func isRegular(h *tar.Header) bool {
	return h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeCont || h.Typeflag == tar.TypeGNUSparse
}

// contested reports whether a global header changes the members behind it.
func contested(h *tar.Header) bool {
	return h.Typeflag == tar.TypeXGlobalHeader && (h.PAXRecords["path"] != "" || h.PAXRecords["size"] != "")
}

const (
	whyContested = "a global header renames or resizes members, and readers disagree about it"
	whySparse    = "a sparse member does not lie in the archive as it is"
)

// add takes one header, whose member's bytes begin at offset.
func (l *tarListing) add(o *Object, h *tar.Header, offset int64) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
	case tar.TypeDir:
		return nil // it shows in the names of its members
	case tar.TypeXGlobalHeader:
		if contested(h) {
			l.skip(whyContested, h.Name, offset)
		}
		return nil
	case tar.TypeLink, tar.TypeSymlink:
		l.skip("a link is no data", h.Name, offset)
		return nil
	default:
		l.skip("a device or pipe is no data", h.Name, offset)
		return nil
	}
	if IsSparse(h) {
		l.skip(whySparse, h.Name, offset)
		return nil
	}
	if key, _, ok := sampleKey(h.Name); ok && (l.samples == 0 || key != l.key) {
		l.samples++
		l.key = key
	}
	name, why := memberName(h.Name)
	if why == "" {
		why = l.clash(name)
	}
	if why != "" {
		l.skip(why, h.Name, offset)
		return nil
	}
	m := tarMember{name, offset, h.Size, h.ModTime}
	if i, twice := l.byName[name]; twice { // as tar itself extracts: the last one stays
		l.skip("another member later has the same name", h.Name, l.members[i].offset)
		l.members[i] = m
		return nil
	}
	if len(l.members) == maxTarMembers {
		return absent("%s has more than %d members: split the archive to see them as files", o.Name, maxTarMembers)
	}
	l.byName[name] = len(l.members)
	l.members = append(l.members, m)
	for dir := dirOf(name); dir != ""; dir = dirOf(dir) {
		if _, known := l.folders[dir]; known {
			break
		}
		l.folders[dir] = struct{}{}
	}
	return nil
}

// IsSparse tells a member whose bytes do not lie in the archive as they are.
func IsSparse(h *tar.Header) bool {
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// clash says why name cannot stand beside the names before it: one path is both file and directory.
func (l *tarListing) clash(name string) string {
	if _, folder := l.folders[name]; folder {
		return "the name is a directory's too"
	}
	for dir := dirOf(name); dir != ""; dir = dirOf(dir) {
		if _, file := l.byName[dir]; file {
			return "its directory is a file"
		}
	}
	return ""
}

// memberName returns the path at which a view shows a member, or why it shows none.
func memberName(name string) (clean, why string) {
	clean = path.Clean(name)
	switch parts := strings.Split(name, "/"); {
	case name == "" || clean == ".":
		return "", "the name is empty"
	case path.IsAbs(name):
		return "", "the name is absolute"
	case strings.ContainsRune(name, 0):
		return "", "the name holds a zero byte"
	case len(name) > maxMemberPath || len(parts) > maxMemberDepth:
		return "", fmt.Sprintf("the name has more than %d bytes or %d parts", maxMemberPath, maxMemberDepth)
	default:
		for _, part := range parts {
			if part == ".." {
				return "", "the name leaves its directory"
			}
			if len(part) > maxMemberFolder {
				return "", fmt.Sprintf("a part of the name has more than %d bytes", maxMemberFolder)
			}
		}
	}
	return clean, ""
}

func (l *tarListing) skip(why, name string, at int64) {
	for i := range l.skipped {
		if l.skipped[i].why == why {
			l.skipped[i].count++
			return
		}
	}
	l.skipped = append(l.skipped, tarSkipped{why, 1, name, at})
}

// files makes a file of each member of o.
func (l *tarListing) files(o *Object) []*File {
	files := make([]File, len(l.members))
	out := make([]*File, len(l.members))
	for i, m := range l.members {
		f := &files[i]
		f.Name, f.ModTime, f.Tokens = m.name, m.modTime, -1
		f.Body.Add(o, m.offset, m.size)
		out[i] = f
	}
	return out
}

// windowReader reads an object through a window: a large one where reads follow each other, a small one after a jump
// over data.
type windowReader struct {
	ctx context.Context
	o   *Object
	off int64
	err error // of the origin, which archive/tar may wrap or hide

	window []byte // of room, which is used again
	room   []byte
	at     int64 // where window begins in o
}

const (
	windowAfterJump = 4 << 10
	windowFollowing = 64 << 10
)

func (r *windowReader) Read(p []byte) (int, error) {
	if r.off >= r.o.Size {
		return 0, io.EOF
	}
	if !r.load() {
		return 0, r.err
	}
	n := copy(p, r.window[r.off-r.at:])
	r.off += int64(n)
	return n, nil
}

// load moves the window so that it has the byte at off.
func (r *windowReader) load() (ok bool) {
	end := r.at + int64(len(r.window))
	if r.off >= r.at && r.off < end {
		return true
	}
	size := int64(windowAfterJump)
	if r.off >= end && r.off < end+windowAfterJump {
		size = windowFollowing
	}
	size = min(size, r.o.Size-r.off)
	r.window, r.room = nil, slices.Grow(r.room[:0], int(size))
	err := fill(r.ctx, r.o, r.room[:size], r.off)
	if err == nil {
		err = r.ctx.Err()
	}
	if err != nil {
		r.err = err
		return false
	}
	r.window, r.at = r.room[:size], r.off
	return true
}

// Seek moves to a place that may lie behind the end.
func (r *windowReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.off
	case io.SeekEnd:
		offset += r.o.Size
	}
	if offset < 0 {
		return 0, errors.New("the place lies before the start, or past 2^63")
	}
	r.off = offset
	return offset, nil
}
