package layout

import (
	"context"
	"encoding/binary"
)

// offsetTable begins an MDS shard and a LitData chunk alike: u32 N, then u32[N+1]. They are the offsets in the file at
// which the N samples begin, and the end of the last one. Sources: mosaicml/streaming, base/format/mds/writer.py;
// Lightning-AI/litData, streaming/writer.py.
type offsetTable struct {
	object  *Object
	samples int64
}

// offsetWindow is how many bytes of a table are held in memory.
const offsetWindow = 64 << 10

// readOffsetTable checks o's count of samples against the one that the dataset's index gives.
func readOffsetTable(ctx context.Context, o *Object, samples int64) (offsetTable, error) {
	t := offsetTable{o, samples}
	if o.Size < 8 {
		return t, corruptf(o, 0, "the file has %d bytes, a table of offsets takes at least 8", o.Size)
	}
	raw, err := readFull(ctx, o, 0, 4)
	if err != nil {
		return t, err
	}
	if n := int64(binary.LittleEndian.Uint32(raw)); n != samples {
		return t, corruptf(o, 0, "the file counts %d samples, the index %d", n, samples)
	}
	if t.end() > o.Size {
		return t, corruptf(o, 0, "a table of %d samples ends at %d, the file has %d bytes", samples, t.end(), o.Size)
	}
	return t, nil
}

// end returns where the table ends, bytes.
func (t offsetTable) end() int64 { return 4 * (t.samples + 2) }

// at returns entry i of the table, from 0 to samples.
func (t offsetTable) at(ctx context.Context, i int64) (int64, error) {
	raw, err := readFull(ctx, t.object, 4+4*i, 4)
	if err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint32(raw)), nil
}

// walk reads the whole table. It calls each, which may be nil, with the number of every sample and the bytes [begin,
// end) where it lies. An offset that decreases, or lies in the table or outside the file, is an error.
func (t offsetTable) walk(ctx context.Context, each func(i, begin, end int64) error) error {
	previous, floor := int64(-1), t.end()
	for at := int64(4); at < t.end(); at += offsetWindow {
		raw, err := readFull(ctx, t.object, at, min(offsetWindow, t.end()-at))
		if err != nil {
			return err
		}
		for k := 0; k < len(raw); k += 4 {
			offset := int64(binary.LittleEndian.Uint32(raw[k:]))
			if offset < floor || offset > t.object.Size {
				return corruptf(t.object, at+int64(k), "the offset %d lies outside the %d to %d that are left for it", offset, floor, t.object.Size)
			}
			if previous >= 0 && each != nil {
				if err := each((at+int64(k))/4-2, previous, offset); err != nil {
					return err
				}
			}
			previous, floor = offset, offset
		}
	}
	return nil
}
