package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/hbmfs/hbmfs/layout"
)

// key names a segment: by the origin, the object and its version, the size of segments, and which one it is.
type key [16]byte

// identity is common to the keys of an object's segments.
func identity(source string, o *layout.Object, segment int64) [sha256.Size]byte {
	b := []byte("hbmfs segment 1\x00")
	for _, text := range []string{source, o.Name, o.Version} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(o.Size))
	b = binary.LittleEndian.AppendUint64(b, uint64(segment))
	return sha256.Sum256(b)
}

func keyOf(identity [sha256.Size]byte, index int64) (k key) {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(identity[:], uint64(index)))
	copy(k[:], sum[:])
	return k
}

// name is where a segment lies below the directory of segments.
func (k key) name() string {
	text := hex.EncodeToString(k[:])
	return text[:2] + "/" + text[2:]
}

// parseName is the inverse of name.
func parseName(name string) (k key, ok bool) {
	dir, base, found := strings.Cut(name, "/")
	if !found || len(dir) != 2 || len(base) != 2*len(k)-2 || strings.ToLower(name) != name {
		return key{}, false
	}
	_, err := hex.Decode(k[:], []byte(dir+base))
	return k, err == nil
}
