package layout

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"strings"
)

// Versions that are the content's hash, in hex, begin so.
const (
	SHA256Version = "sha256:" // of the bytes
	CRC32CVersion = "crc32c:" // of the bytes; a space and more of the version may follow
	MD5Version    = "md5:"    // of the bytes; a space and more of the version may follow
	GitVersion    = "git:"    // SHA-1 of the bytes as a blob of Git
)

// DecodedVersion follows the version of an object in that of another one, which is made of its bytes. More may follow.
const DecodedVersion = "-decoded"

// VersionHash returns the hash that the bytes of an object must have: where the version says it, and nil elsewhere. An object that is made of
// another one has no hash.
func VersionHash(version string, size int64) hash.Hash {
	if strings.Contains(version, DecodedVersion) {
		return nil
	}
	_, want, _ := strings.Cut(version, ":")
	want, _, _ = strings.Cut(want, " ")
	h := hashOf(version, size)
	if h == nil || len(want) != hex.EncodedLen(h.Size()) || strings.Trim(want, "0123456789abcdef") != "" {
		return nil
	}
	return h
}

func hashOf(version string, size int64) hash.Hash {
	switch {
	case strings.HasPrefix(version, SHA256Version):
		return sha256.New()
	case strings.HasPrefix(version, CRC32CVersion):
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case strings.HasPrefix(version, MD5Version):
		return md5.New()
	case strings.HasPrefix(version, GitVersion):
		h := sha1.New()
		fmt.Fprintf(h, "blob %d\x00", size)
		return h
	}
	return nil
}

// CheckHash compares the hash of all bytes of an object with its version.
func CheckHash(version string, h hash.Hash) error {
	kind, want, _ := strings.Cut(version, ":")
	want, _, _ = strings.Cut(want, " ")
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("the bytes have %s %s, and the source says %s", kind, got, want)
	}
	return nil
}
