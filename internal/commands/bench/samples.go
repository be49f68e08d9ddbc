package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/layout"
)

// samples says where the samples of a field lie in the file of its values.
type samples struct {
	ends   []int64 // bytes of a ragged field up to the end of each sample; nil: it is dense
	row    int64   // bytes of a dense field's sample
	header int64   // bytes before the first sample
	count  int64
}

// samplesOf reads where the samples of a file lie: fields/NAME.npy or fields/NAME.values.npy of a mount's views. It returns nil for other
// files, and only counts samples that end within the first `most` bytes.
func samplesOf(file string, most int64) (*samples, error) {
	dir := filepath.Dir(file)
	text, err := os.ReadFile(filepath.Join(dir, "fields.json"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all struct {
		Samples int64          `json:"samples"`
		Fields  []layout.Field `json:"fields"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read %s/fields.json: %w", dir, err)
	}
	name, isArray := strings.CutSuffix(filepath.Base(file), ".npy")
	name, ragged := strings.CutSuffix(name, ".values")
	for _, f := range all.Fields {
		if !isArray || f.File != name || (f.Kind == "ragged") != ragged {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		s := &samples{header: info.Size() - f.Bytes, count: all.Samples}
		if ragged {
			err = s.readEnds(filepath.Join(dir, name+".offsets.npy"), f.Bytes)
		} else if s.row = f.Bytes / max(1, s.count); s.row*s.count != f.Bytes {
			err = fmt.Errorf("%s: %d bytes are no %d samples", file, f.Bytes, s.count)
		}
		if err == nil && s.header < 0 {
			err = fmt.Errorf("%s has fewer bytes than its %d samples", file, s.count)
		}
		for err == nil && s.count > 0 && s.span(s.count-1).Offset+s.span(s.count-1).Length > most {
			s.count--
		}
		s.ends = s.ends[:min(s.count, int64(len(s.ends)))]
		return s, err
	}
	return nil, nil
}

// readEnds reads the offsets of a ragged field, whose values have so many bytes.
func (s *samples) readEnds(file string, bytes int64) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if int64(len(raw))/8 <= s.count {
		return fmt.Errorf("%s has no offsets of %d samples", file, s.count)
	}
	raw = raw[int64(len(raw))-8*s.count:] // without the header, and the first offset, which is 0
	last, at := int64(0), int64(0)
	if s.count > 0 {
		last = int64(binary.LittleEndian.Uint64(raw[len(raw)-8:]))
	}
	item := bytes / max(1, last)
	if last < 0 || item*last != bytes {
		return fmt.Errorf("%s ends with %d, of %d bytes of values", file, last, bytes)
	}
	s.ends = make([]int64, s.count)
	for i := range s.ends {
		end := int64(binary.LittleEndian.Uint64(raw[8*i:]))
		if end < at || end > last {
			return fmt.Errorf("%s: sample %d ends at %d, after %d of %d", file, i, end, at, last)
		}
		at, s.ends[i] = end, end*item
	}
	return nil
}

// span is the bytes of a sample in the file.
func (s *samples) span(i int64) cufile.Span {
	if s.ends == nil {
		return cufile.Span{Offset: s.header + i*s.row, Length: s.row}
	}
	begin := int64(0)
	if i > 0 {
		begin = s.ends[i-1]
	}
	return cufile.Span{Offset: s.header + begin, Length: s.ends[i] - begin}
}

// largest is the bytes of the largest sample.
func (s *samples) largest() (n int64) {
	for i := range int64(len(s.ends)) {
		n = max(n, s.span(i).Length)
	}
	return max(n, s.row)
}

// shuffled reads batches of whole samples at random: as many as a block has room for, and no more than a gather has.
func (b *line) shuffled(ctx context.Context, f *cufile.File, seed uint64, until time.Time, moved, count *atomic.Int64) error {
	of, random := b.opt.field, rand.New(rand.NewPCG(seed, 1))
	var batch []cufile.Span
	for first := true; first || time.Now().Before(until); first = false {
		size := int64(0)
		for batch = batch[:0]; len(batch) < b.opt.Samples; {
			next := of.span(random.Int64N(of.count))
			if len(batch) > 0 && size+next.Length > b.opt.Block {
				break
			}
			batch, size = append(batch, next), size+next.Length
		}
		v, err := f.GatherSpans(ctx, batch)
		if err != nil {
			return err
		}
		moved.Add(v.Len())
		count.Add(int64(len(batch)))
		v.Release()
	}
	return nil
}
