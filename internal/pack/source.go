package pack

import (
	"context"
	"fmt"

	"github.com/hbmfs/hbmfs/internal/pack/corpus"
	"github.com/hbmfs/hbmfs/internal/pack/tokenizer"
)

// Document is a document, or a part of one.
type Document = corpus.Document

// Source yields documents in an order that never changes, with the bytes of the source that they and everything before
// them took.
type Source interface {
	// Documents calls yield for every document until yield or ctx gives an error, which it returns.
	Documents(ctx context.Context, yield func(d Document, read int64) error) error
}

// batchBytes and batchDocuments bound a worker's batch. They fix the borders of batches, so they must not depend
// on the number of workers.
const (
	batchBytes     = 256 << 10
	batchDocuments = 4096
)

// batch is documents that one worker parses and tokenizes.
type batch struct {
	blocks  []*corpus.Block // to be parsed by a worker
	tokens  []uint32
	parts   []part
	leftOut []*corpus.LeftOut
	read    int64            // bytes of the source up to here
	next    *corpus.Position // behind the batch, nil where nobody can begin
	bytes   int64            // of memory, before it is tokenized

	done chan struct{} // closed when a worker is through
	err  error
}

// part is one Document of a batch.
type part struct {
	end      int // of its tokens in tokens
	more     bool
	repaired bool
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// add takes a document that is tokenized already.
func (b *batch) add(d Document, read int64) {
	b.tokens = append(b.tokens, d.Tokens...)
	b.parts = append(b.parts, part{len(b.tokens), d.More, d.Repaired})
	b.read = read
}

// addBlock takes a block.
func (b *batch) addBlock(block *corpus.Block, before int64) {
	if block.LeftOut != nil {
		b.leftOut = append(b.leftOut, block.LeftOut)
	}
	b.blocks = append(b.blocks, block)
	b.bytes += int64(block.Bytes())
	b.read = before + block.Read
	b.next = nil
	if !block.Next.In {
		b.next = &block.Next
	}
}

func (b *batch) full() bool {
	return b.bytes >= batchBytes || 4*len(b.tokens) >= batchBytes || len(b.parts) >= batchDocuments || len(b.blocks) >= batchDocuments
}

// parse turns the blocks into tokens.
func (b *batch) parse(e *tokenizer.Encoder) error {
	for i, block := range b.blocks {
		err := block.Documents(func(d Document) error {
			repaired := d.Repaired
			if d.Tokens != nil || e == nil {
				b.tokens = append(b.tokens, d.Tokens...)
			} else {
				if b.tokens == nil {
					b.tokens = make([]uint32, 0, b.bytes/3)
				}
				tokens, invalid, err := e.Append(b.tokens, d.Text, d.Continued)
				if err != nil {
					return fmt.Errorf("tokenize: %w", err)
				}
				b.tokens, repaired = tokens, repaired || invalid
			}
			b.parts = append(b.parts, part{len(b.tokens), d.More, repaired})
			return nil
		})
		if err != nil {
			return err
		}
		b.blocks[i] = nil
	}
	return nil
}
