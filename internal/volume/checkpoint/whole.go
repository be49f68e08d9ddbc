package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/hbmfs/hbmfs/layout/safetensors"
)

// Whole refuses a draft with a file that ends before its own format says, as one does whose writer was killed. It knows the zip archives of torch.save, and
// safetensors. Files of other formats are taken as they are. The error is an [ErrInvalid].
func (d *Draft) Whole() error { return allWhole(d.dir, ".") }

// allWhole is Whole for a directory below root.
func allWhole(root *os.Root, dir string) error {
	return walk(root, dir, 0, func(name string, info fs.FileInfo) error {
		if !info.Mode().IsRegular() {
			return nil
		}
		f, info, err := openRegular(root, name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // opened for reading
		why, err := cut(f, info.Size(), path.Ext(name))
		if err == nil && why != "" {
			err = failf(ErrInvalid, "file %q is not whole (%s): its writer may have been killed", strings.TrimPrefix(name, dir+"/"), why)
		}
		return err
	})
}

// cut tells why a file is not whole, "" where nothing is known against it.
func cut(f io.ReaderAt, size int64, ending string) (why string, err error) {
	switch ending {
	case ".safetensors":
		_, err = safetensors.Open(f, size)
		if wrong := (*safetensors.Error)(nil); errors.As(err, &wrong) {
			return wrong.Error(), nil
		}
		return "", err
	case ".pt", ".pth", ".ckpt", ".bin", ".npz":
	default:
		return "", nil
	}
	const first, last, record, mostComment = "PK\x03\x04", "PK\x05\x06", 22, 1<<16 - 1 // APPNOTE.TXT of PKWARE, 4.3.7 and 4.3.16
	head := make([]byte, min(size, int64(len(first))))
	tail := make([]byte, min(size, record+mostComment))
	if _, err = f.ReadAt(head, 0); err == nil {
		_, err = f.ReadAt(tail, size-int64(len(tail)))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if !strings.HasPrefix(first, string(head)) { // torch's format before 1.6, or another program's
		return "", nil
	}
	for at := bytes.LastIndex(tail, []byte(last)); at >= 0; at = bytes.LastIndex(tail[:at], []byte(last)) {
		if len(tail)-at < record {
			continue
		}
		length, begin := binary.LittleEndian.Uint32(tail[at+12:]), binary.LittleEndian.Uint32(tail[at+16:])
		const elsewhere = 1<<32 - 1 // the numbers are in a record of 64 bits
		if length == elsewhere || begin == elsewhere || int64(begin)+int64(length) <= size-int64(len(tail)-at) {
			return "", nil
		}
	}
	return "the archive has no directory at its end", nil
}
