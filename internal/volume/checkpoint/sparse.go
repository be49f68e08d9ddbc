package checkpoint

import (
	"context"
	"errors"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A file may have holes: no blocks, and zeros for readers. Their sums follow from their length, so that the work of summing grows with the blocks
// that a file has, and not with a size that anybody can set.

// nextData is where the next data at or behind a place is. In a file without any more it is the end of the file.
func nextData(f *os.File, at int64) (int64, error) {
	data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		return max(at, info.Size()), nil
	case errors.Is(err, unix.EINVAL): // the filesystem knows no holes
		return at, nil
	}
	return data, err
}

// nextHole is where the data at a place ends.
func nextHole(f *os.File, at int64) (int64, error) {
	hole, err := unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENXIO) { // the filesystem knows none, or the file ends before
		return at + verifySlice, nil
	}
	return hole, err
}

// InHole tells whether n bytes of a file lie in a hole as a whole.
func InHole(f *os.File, at, n int64) (bool, error) {
	data, err := nextData(f, at)
	return err == nil && data >= at+n, err
}

// Holes is how many bytes of a file lie in holes. It takes as long as the file has stretches of data.
func Holes(f *os.File) (holes int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	for at := int64(0); at < info.Size(); {
		data, err := nextData(f, at)
		if err != nil {
			return 0, err
		}
		if holes += min(data, info.Size()) - at; data >= info.Size() {
			break
		}
		if at, err = nextHole(f, data); err != nil {
			return 0, err
		}
	}
	return holes, nil
}

// sumOf sums n bytes of a file, of which it reads those that are not in holes.
func sumOf(f *os.File, at, n int64, buf []byte) (sum uint32, err error) {
	for end := at + n; at < end; {
		data, err := nextData(f, at)
		if err != nil {
			return 0, err
		}
		if data > at {
			sum, at = sumOfZeros(sum, min(data, end)-at), min(data, end)
			if at == end || data < end {
				continue
			}
		}
		hole, err := nextHole(f, at)
		if err != nil {
			return 0, err
		}
		for stop := min(hole, end); at < stop; {
			p := buf[:min(int64(len(buf)), stop-at)]
			got, err := f.ReadAt(p, at)
			if got < len(p) {
				if errors.Is(err, io.EOF) {
					err = failf(ErrDamaged, "the file ends at %d", at+int64(got))
				}
				return 0, err
			}
			sum = crc32.Update(sum, castagnoli(), p)
			at += int64(got)
		}
	}
	return sum, nil
}

// sumOfZeros continues a sum by n zero bytes. A byte multiplies the sum's register by x^8, modulo the polynomial: the method of crc32_combine in
// zlib 1.2.12.
func sumOfZeros(sum uint32, n int64) uint32 {
	const one = 1 << 31 // x^0: bits are reflected
	power, square := uint32(one), uint32(one>>8)
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			power = product(square, power)
		}
		square = product(square, square)
	}
	return ^product(power, ^sum)
}

// product multiplies two polynomials modulo that of CRC-32C.
func product(a, b uint32) (p uint32) {
	for bit := uint32(1 << 31); bit != 0; bit >>= 1 {
		if a&bit != 0 {
			p ^= b
		}
		carry := b & 1
		if b >>= 1; carry != 0 {
			b ^= crc32.Castagnoli
		}
	}
	return p
}

// divide gives out the chunks of a file, to be read or, where they lie in a hole as a whole, to be known by their sum.
func divide(ctx context.Context, f *os.File, file *File, jobs chan<- job, inHole func(chunk int64, sum uint32)) error {
	zeros := sumOfZeros(0, Chunk)
	for first, n := int64(0), int64(len(file.Sums)); first < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := nextData(f, first*Chunk)
		if err != nil {
			return err
		}
		for ; first < n && min((first+1)*Chunk, file.Size) <= data; first++ {
			sum := zeros
			if rest := file.Size - first*Chunk; rest < Chunk {
				sum = sumOfZeros(0, rest)
			}
			inHole(first, sum)
		}
		if first == n {
			break
		}
		end := min(n, first+verifyJob)
		select {
		case jobs <- job{file, first, end}:
		case <-ctx.Done():
			return ctx.Err()
		}
		first = end
	}
	return nil
}
