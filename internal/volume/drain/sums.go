package drain

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"

	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// combiner makes the CRC-32C of consecutive chunks from those of the chunks. A CRC is linear. Appending n bytes to a text multiplies its
// CRC by a matrix over GF(2) that n alone decides, and adds that of the bytes (zlib, crc32_combine).
type combiner struct{ chunk matrix } // of a whole chunk

type matrix [32]uint32

func (m *matrix) times(v uint32) (sum uint32) {
	for i := 0; v != 0; i, v = i+1, v>>1 {
		if v&1 != 0 {
			sum ^= m[i]
		}
	}
	return sum
}

func (m *matrix) multiply(by *matrix) (out matrix) {
	for i := range out {
		out[i] = m.times(by[i])
	}
	return out
}

func newCombiner() *combiner { return &combiner{zeros(checkpoint.Chunk)} }

// zeros is the matrix of n bytes.
func zeros(n int64) (all matrix) {
	var power matrix // of one bit, then of two, four, ...
	power[0] = crc32.Castagnoli
	for i := range all {
		all[i] = 1 << i
		if i > 0 {
			power[i] = 1 << (i - 1)
		}
	}
	for bits := 8 * n; bits > 0; bits >>= 1 {
		if bits&1 != 0 {
			all = power.multiply(&all)
		}
		power = power.multiply(&power)
	}
	return all
}

// of gives the CRC-32C of size bytes whose chunks have these sums.
func (c *combiner) of(sums []uint32, size int64) (sum uint32) {
	for i, s := range sums {
		n := min(checkpoint.Chunk, size-int64(i)*checkpoint.Chunk)
		switch {
		case i == 0:
			sum = s
		case n == checkpoint.Chunk:
			sum = c.chunk.times(sum) ^ s
		default:
			last := zeros(n)
			sum = last.times(sum) ^ s
		}
	}
	return sum
}

// written is a CRC-32C as S3 writes it.
func written(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

// composite is the CRC-32C of an object of several parts, as S3 writes it.
func composite(parts []uint32) string {
	var all []byte
	for _, sum := range parts {
		all = binary.BigEndian.AppendUint32(all, sum)
	}
	return fmt.Sprintf("%s-%d", written(crc32.Checksum(all, crc32.MakeTable(crc32.Castagnoli))), len(parts))
}

// etagOf is the ETag of an object of several parts whose own ETags are MD5s; "" where one is not.
func etagOf(parts []s3origin.Stored) string {
	var all []byte
	for _, p := range parts {
		sum, err := hex.DecodeString(p.ETag)
		if err != nil || len(sum) != md5.Size {
			return ""
		}
		all = append(all, sum...)
	}
	sum := md5.Sum(all)
	return fmt.Sprintf("%x-%d", sum, len(parts))
}
