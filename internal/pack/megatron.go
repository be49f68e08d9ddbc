package pack

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/hbmfs/hbmfs/layout"
)

// megatron writes a .bin of tokens and its .idx (Megatron-LM, megatron/core/datasets/indexed_dataset.py): every
// document is one sequence. The lengths wait in a scratch file, since the index names their count before them.
type megatron struct {
	flat    *flat
	idx     *outFile
	lengths *outFile
	inDoc   int64
}

func newMegatron(o *output, prefix string, d layout.DType) (*megatron, error) {
	bin, err := newFlat(o, prefix+".bin", d, noHeader)
	if err != nil {
		return nil, err
	}
	idx, err := o.create(prefix + ".idx")
	if err != nil {
		return nil, err
	}
	lengths, err := o.create(prefix + ".idx lengths")
	if err != nil {
		return nil, err
	}
	return &megatron{flat: bin, idx: idx, lengths: lengths}, nil
}

func (m *megatron) write(tokens []uint32) error {
	m.inDoc += int64(len(tokens))
	return m.flat.write(tokens)
}

func (m *megatron) full() bool { return false }

func (m *megatron) endDocument() error {
	if m.inDoc > math.MaxInt32 {
		return fmt.Errorf("write %q: a document has %d tokens, Megatron counts up to %d", m.idx.sums.Name, m.inDoc, math.MaxInt32)
	}
	_, err := m.lengths.Write(binary.LittleEndian.AppendUint32(nil, uint32(m.inDoc)))
	m.inDoc = 0
	if err != nil {
		return err
	}
	return m.flat.endDocument()
}

func (m *megatron) finish(ctx context.Context) error {
	defer m.lengths.discard()
	if err := m.lengths.w.Flush(); err != nil {
		return fmt.Errorf("write %q: %w", m.lengths.sums.Name, err)
	}
	if err := m.flat.finish(ctx); err != nil {
		return err
	}
	if err := m.writeIndex(ctx); err != nil {
		return err
	}
	return m.idx.finish(ctx)
}

// writeIndex writes header, lengths (i32), byte offsets in the .bin (i64) and the sequence at which each document
// starts (i64). The last entry is the number of sequences.
func (m *megatron) writeIndex(ctx context.Context) error {
	n := m.flat.file.sums.Documents
	head, ok := layout.MegatronHeader(m.flat.dtype, n, n)
	if !ok {
		panic("pack: internal error: Megatron has no " + m.flat.dtype.String())
	}
	if _, err := m.idx.Write(head); err != nil {
		return err
	}
	if _, err := io.Copy(m.idx, io.NewSectionReader(m.lengths.f, 0, m.lengths.size)); err != nil {
		return fmt.Errorf("write %q: %w", m.idx.sums.Name, err)
	}
	lengths := bufio.NewReaderSize(io.NewSectionReader(m.lengths.f, 0, m.lengths.size), 1<<20)
	pointer, width := int64(0), int64(m.flat.dtype.Size())
	err := m.writeArray(ctx, n, func(int64) (int64, error) {
		var length [4]byte
		if _, err := io.ReadFull(lengths, length[:]); err != nil {
			return 0, fmt.Errorf("read back the lengths of %q: %w", m.idx.sums.Name, err)
		}
		at := pointer
		pointer += width * int64(binary.LittleEndian.Uint32(length[:]))
		return at, nil
	})
	if err != nil {
		return err
	}
	return m.writeArray(ctx, n+1, func(i int64) (int64, error) { return i, nil })
}

// writeArray writes n i64s to the index.
func (m *megatron) writeArray(ctx context.Context, n int64, element func(i int64) (int64, error)) error {
	for i := range n {
		if i%(1<<16) == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		v, err := element(i)
		if err != nil {
			return err
		}
		if _, err := m.idx.Write(binary.LittleEndian.AppendUint64(nil, uint64(v))); err != nil {
			return err
		}
	}
	return nil
}

func (m *megatron) save() (*shardState, error) {
	files, err := saveFiles(m.flat.file, m.idx, m.lengths)
	return &shardState{Files: files}, err
}
