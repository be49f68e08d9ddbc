package layout

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"time"
)

// plain reads the header at r.off as archive/tar does, if it is one as nearly every writer makes them: one block of ustar or GNU format, of a
// regular file. archive/tar takes five times as long for it, and reads all others.
func (r *windowReader) plain(h *tar.Header) (ok bool) {
	if r.o.Size-r.off < tarBlock || !r.load() || int64(len(r.window))-(r.off-r.at) < tarBlock {
		return false
	}
	b := r.window[r.off-r.at:][:tarBlock]
	prefix := untilZero(b[345:500])
	switch string(b[257:265]) {
	case "ustar\x0000":
		ok = string(b[508:]) != "tar\x00" // the format of star has times in the prefix
	case "ustar  \x00":
		ok = b[345] == 0 // else it is a time, or a prefix that Go wrote before 1.8
	}
	if !ok || b[156] != tar.TypeReg {
		return false
	}
	sum, ok := octal(b[148:156])
	if !ok || sum != sumOf(b) {
		return false
	}
	for _, field := range [][]byte{b[100:108], b[108:116], b[116:124], b[329:337], b[337:345]} { // mode, owner, group and device
		if _, ok := octal(field); !ok {
			return false
		}
	}
	size, ok1 := octal(b[124:136])
	seconds, ok2 := octal(b[136:148])
	if !ok1 || !ok2 {
		return false
	}
	*h = tar.Header{Typeflag: tar.TypeReg, Size: size, ModTime: time.Unix(seconds, 0)}
	if h.Name = string(untilZero(b[:100])); len(prefix) > 0 {
		h.Name = string(prefix) + "/" + h.Name
	}
	r.off += tarBlock
	return true
}

// untilZero is a field until its first zero byte.
func untilZero(field []byte) []byte {
	if end := bytes.IndexByte(field, 0); end >= 0 {
		return field[:end]
	}
	return field
}

// octal reads digits that only spaces and zero bytes follow. No digits are 0.
func octal(field []byte) (n int64, ok bool) {
	ended := false
	for _, c := range field {
		switch {
		case c == ' ' || c == 0:
			ended = true
		case ended || c < '0' || c > '7':
			return 0, false
		default:
			n = n<<3 | int64(c-'0')
		}
	}
	return n, true
}

// sumOf is the checksum of a header, whose own bytes count as spaces.
func sumOf(b []byte) int64 {
	const bytesApart = 0x00ff00ff00ff00ff
	sum := uint64(0) // four sums of 16 bits, which 512 bytes fit into
	for i := 0; i < tarBlock; i += 8 {
		n := binary.LittleEndian.Uint64(b[i:])
		sum += n&bytesApart + n>>8&bytesApart
	}
	total := int64(sum&0xffff + sum>>16&0xffff + sum>>32&0xffff + sum>>48)
	for _, c := range b[148:156] {
		total += ' ' - int64(c)
	}
	return total
}
