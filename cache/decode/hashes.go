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

// digest is the hash that some bytes must have.
type digest struct {
	name string
	want string           // hex
	make func() hash.Hash // nil for the digest of nothing
}

// hashes are the known ones, the fastest first.
func hashes() []namedHash {
	return []namedHash{
		{"xxh3_64", func() hash.Hash { return xxh3.New() }},
		{"xxh3_128", func() hash.Hash { return xxh3.New128() }},
		{"xxh128", func() hash.Hash { return xxh3.New128() }},
		{"xxh64", func() hash.Hash { return xxhash.New() }},
		{"sha1", sha1.New},
		{"sha256", sha256.New},
		{"sha224", sha256.New224},
		{"md5", md5.New},
		{"sha512", sha512.New},
		{"sha384", sha512.New384},
		{"sha3_224", func() hash.Hash { return sha3.New224() }},
		{"sha3_256", func() hash.Hash { return sha3.New256() }},
		{"sha3_384", func() hash.Hash { return sha3.New384() }},
		{"sha3_512", func() hash.Hash { return sha3.New512() }},
	}
}

type namedHash struct {
	name string // as in Python's hashlib and xxhash
	make func() hash.Hash
}

// fastest picks the hash to compare. One tells damage as well as all of them.
func fastest(given map[string]string) digest {
	for _, h := range hashes() {
		if want, ok := given[h.name]; ok {
			return digest{h.name, want, h.make}
		}
	}
	return digest{}
}

// slow reports whether the hash takes about as long as decoding.
func (d digest) slow() bool { return !strings.HasPrefix(d.name, "xx") }

// check compares the sum of s, and closes it.
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
