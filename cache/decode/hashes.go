package decode

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/zeebo/xxh3"
)

// digest is what a hash of some bytes must be.
type digest struct {
	name string // as in Python's hashlib and xxhash
	want string // hex
}

// fastestFirst names the hashes that are known here.
func fastestFirst() []string {
	return []string{
		"xxh3_64", "xxh3_128", "xxh128", "xxh64", "sha1", "sha256", "sha224", "md5", "sha512", "sha384",
		"sha3_224", "sha3_256", "sha3_384", "sha3_512",
	}
}

// newHash makes a hash by its name, nil for those that are not known here.
func newHash(name string) hash.Hash {
	switch name {
	case "xxh3_64":
		return xxh3.New()
	case "xxh3_128", "xxh128":
		return xxh3.New128()
	case "xxh64":
		return xxhash.New()
	case "sha1":
		return sha1.New()
	case "sha224":
		return sha256.New224()
	case "sha256":
		return sha256.New()
	case "sha384":
		return sha512.New384()
	case "sha512":
		return sha512.New()
	case "md5":
		return md5.New()
	case "sha3_224":
		return sha3.New224()
	case "sha3_256":
		return sha3.New256()
	case "sha3_384":
		return sha3.New384()
	case "sha3_512":
		return sha3.New512()
	}
	return nil
}

// fastest picks the hash to compare. One tells damage as well as all of them.
func fastest(hashes map[string]string) digest {
	for _, name := range fastestFirst() {
		if want, ok := hashes[name]; ok {
			return digest{name, want}
		}
	}
	return digest{}
}

// slow reports whether the hash takes about as long as decoding.
func (d digest) slow() bool { return !strings.HasPrefix(d.name, "xx") }

// check compares what s has summed, and closes it.
func (d digest) check(s *summing) error {
	if s == nil {
		return nil
	}
	s.close()
	if got := hexOf(s.sum); got != strings.ToLower(d.want) {
		return fmt.Errorf("%s is %s, the index says %.130s", d.name, got, d.want)
	}
	return nil
}

func hexOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }
