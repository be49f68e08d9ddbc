package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/trust"
	"github.com/hbmfs/hbmfs/layout"
)

// xattrName is the extended attribute of a published segment: a header, see [header.append].
const xattrName = "user.hbmfs.segment"

const (
	headerMagic = "HBS2"
	firstMagic  = "HBS1" // of headers without a key
	headerFixed = 4 + 4 + 8 + 8 + 8 + 2 + 2 + 2 + 2
	maxText     = 700     // bytes of each text that are kept: ext4 has 4 KiB for all of a file's attributes
	maxHeader   = 4 << 10 // bytes
)

var (
	errHeader = errors.New("the segment's header is damaged")
	errForged = errors.New("the segment may be another's work")
	errPlace  = errors.New("the segment belongs to another object, or to another part of this one")
)

// header describes a segment.
type header struct {
	key     *key  // where the segment belongs; nil in headers of the first version
	size    int64 // bytes of the segment
	offset  int64 // of its first byte in the object
	object  int64 // bytes of the object
	source  string
	name    string
	version string
	sums    []uint32 // CRC-32C of each sumBlock
}

// sumBlock is how many bytes of a segment have a checksum of their own: 1 MiB, or as many more as keep them at mostSums.
func sumBlock(size int64) int64 {
	n := int64(1 << 20)
	for n*mostSums < size {
		n *= 2
	}
	return n
}

func sumsOf(size int64) int {
	n := sumBlock(size)
	return int((size + n - 1) / n)
}

// append writes a header: magic, number of sums (u32), size, offset, object size (u64), lengths of the three texts
// (u16), reserved (u16); then the key, the texts, the sums (u32), and the CRC-32C of all before. Little-endian.
func (h *header) append(b []byte) []byte {
	source, name, version := h.source[:min(len(h.source), maxText)], h.name[:min(len(h.name), maxText)], h.version[:min(len(h.version), maxText)]
	b = append(b, headerMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.sums)))
	for _, n := range []int64{h.size, h.offset, h.object} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	for _, text := range []string{source, name, version} {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	}
	b = append(append(b, 0, 0), h.key[:]...)
	b = append(append(append(b, source...), name...), version...)
	for _, sum := range h.sums {
		b = binary.LittleEndian.AppendUint32(b, sum)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli()))
}

// parseHeader reads the text of append.
func parseHeader(b []byte) (*header, error) {
	if len(b) < headerFixed+4 || string(b[:4]) != headerMagic && string(b[:4]) != firstMagic {
		return nil, errHeader
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli()) != sum {
		return nil, errHeader
	}
	le := binary.LittleEndian
	h := &header{size: int64(le.Uint64(b[8:])), offset: int64(le.Uint64(b[16:])), object: int64(le.Uint64(b[24:]))}
	sums := int(le.Uint32(b[4:]))
	lengths := [3]int{int(le.Uint16(b[32:])), int(le.Uint16(b[34:])), int(le.Uint16(b[36:]))}
	rest := body[headerFixed:]
	if string(b[:4]) == headerMagic {
		if len(rest) < len(h.key) {
			return nil, errHeader
		}
		h.key = (*key)(rest)
		rest = rest[len(h.key):]
	}
	if le.Uint16(b[38:]) != 0 || max(lengths[0], lengths[1], lengths[2]) > maxText {
		return nil, errHeader
	}
	if h.size < 0 || h.offset < 0 || h.object < 0 || h.size > MaxSegment || h.offset > h.object-h.size ||
		sums != sumsOf(h.size) || lengths[0]+lengths[1]+lengths[2]+4*sums != len(rest) {
		return nil, errHeader
	}
	for i, to := range []*string{&h.source, &h.name, &h.version} {
		*to, rest = string(rest[:lengths[i]]), rest[lengths[i]:]
	}
	for ; len(rest) > 0; rest = rest[4:] {
		h.sums = append(h.sums, le.Uint32(rest))
	}
	return h, nil
}

// belongs reports whether a segment with this header has the key k. A header of the first version has no key. It has the parts of the
// key, but for the size of segments, and with long texts cut: such a segment belongs nowhere.
func (h *header) belongs(k key) bool {
	if h.key != nil {
		return *h.key == k
	}
	if max(len(h.source), len(h.name), len(h.version)) == maxText {
		return false
	}
	o := &layout.Object{Name: h.name, Version: h.version, Size: h.object}
	fits := func(segment int64) bool {
		return h.offset%segment == 0 && keyOf(identity(h.source, o, segment), h.offset/segment) == k
	}
	if h.offset+h.size < h.object {
		return h.size > 0 && fits(h.size)
	}
	for segment := (h.size + 1<<20 - 1) >> 20 << 20; segment <= MaxSegment; segment += 1 << 20 { // the last one of an object may be shorter
		if segment > 0 && fits(segment) {
			return true
		}
	}
	return false
}

// readHeader reads the header of an open segment, and compares it with the file's size and with k, by which the segment was found. A
// segment of another user, or one that others may write to, is none.
func readHeader(fd int, k key) (*header, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat a segment: %w", err)
	}
	if err := trust.File(&st); err != nil {
		return nil, fmt.Errorf("%w: %w", errForged, err)
	}
	buf := make([]byte, maxHeader)
	n, err := unix.Fgetxattr(fd, xattrName, buf)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errHeader, err)
	}
	h, err := parseHeader(buf[:n])
	if err != nil {
		return nil, err
	}
	if st.Size != h.size {
		return nil, fmt.Errorf("%w: it has %d bytes, %d were published", errHeader, st.Size, h.size)
	}
	if !h.belongs(k) {
		return nil, errPlace
	}
	return h, nil
}

// castagnoli is the table of CRC-32C, which processors compute themselves.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }
