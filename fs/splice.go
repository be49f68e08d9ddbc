package fs

import (
	"context"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

// spliceMin is the smallest read for which two more system calls cost less than a copy.
const spliceMin = 32 << 10

// load loads bytes that lie in one local file into a pipe, from which go-fuse moves them to the kernel without a
// copy through this process. It returns nothing for reads that this does not fit. go-fuse could splice from the file
// itself, but would answer a file that lost bytes with a short reply, which the kernel takes for its end.
func (p *pipes) load(ctx context.Context, body *layout.Body, off, size int64) (fuse.ReadResult, error) {
	if size < spliceMin {
		return nil, nil
	}
	var lies layout.Extent
	for e := range body.Extents(off, size) {
		lies = e
		break
	}
	if lies.Length != size {
		return nil, nil
	}
	from := lies
	k := storage.Of(lies.Object).Segmented
	if k != nil {
		file, at, n := k.Lies(lies.Object, lies.Offset)
		if file == nil || n < size {
			return nil, nil
		}
		from.Object, from.Offset = file, at
	}
	origin := storage.Of(from.Object).Local
	if origin == nil {
		return nil, nil
	}
	fd, done, err := origin.Borrow(ctx, from.Object)
	if err != nil {
		if k != nil { // evicted just now
			return nil, nil
		}
		return nil, err
	}
	defer done()
	pipe := p.get(size)
	if pipe == nil {
		return nil, nil
	}
	for n := int64(0); n < size; {
		k, err := pipe.LoadFromAt(uintptr(fd), int(size-n), from.Offset+n)
		if err != nil || k <= 0 { // the copy will find out why
			p.put(pipe)
			return nil, nil
		}
		n += int64(k)
	}
	if k != nil {
		k.WasRead(lies.Object, lies.Offset, size)
	}
	return &piped{p, pipe, int(size)}, nil
}
