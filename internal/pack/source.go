package pack

import (
	"context"
	"fmt"

	"github.com/hbmfs/hbmfs/internal/tokenizer"
)

// Document is a document, or a part of one: text, or tokens where the source is tokenized already.
type Document struct {
	Text   []byte   // valid until yield returns
	Tokens []uint32 // valid until yield returns
	More   bool     // the document goes on in the next Document; such a text may be tokenized on its own
	// Repaired says that the source replaced invalid UTF-8. The tokenizer finds the rest.
	Repaired bool
	Read     int64 // bytes of the source that this and everything before it took, for progress
}

// Source yields documents in an order that never changes.
type Source interface {
	// Documents calls yield for every document until yield or ctx gives an error, which it returns.
	Documents(ctx context.Context, yield func(Document) error) error
}

// maxDocument bounds a text that offers no place to cut it, and a line of JSONL. 64 MiB.
const maxDocument = 64 << 20

// batchBytes and batchDocuments bound what one worker takes at once. They fix the borders of batches, so they must
// not depend on the number of workers.
const (
	batchBytes     = 256 << 10
	batchDocuments = 4096
)

// batch is a run of documents that one worker tokenizes: texts end to end, or tokens.
type batch struct {
	text   []byte
	tokens []uint32 // filled by the worker where the source has text
	parts  []part
	goesOn bool // the first part goes on with the last document of the batch before
	read   int64

	repaired int64         // documents, or parts of long ones, with invalid UTF-8
	done     chan struct{} // closed when a worker is through
	err      error
}

// part is one Document of a batch.
type part struct {
	end  int // of its bytes in text or, once they are there, of its tokens in tokens
	more bool
}

func (b *batch) add(d Document) {
	b.text = append(b.text, d.Text...)
	b.tokens = append(b.tokens, d.Tokens...)
	b.parts = append(b.parts, part{len(b.text) + len(b.tokens), d.More}) // one of them is empty
	b.read = d.Read
	if d.Repaired {
		b.repaired++
	}
}

func (b *batch) full() bool {
	return len(b.text)+4*len(b.tokens) >= batchBytes || len(b.parts) >= batchDocuments
}

// encode tokenizes b's texts in place.
func (b *batch) encode(e *tokenizer.Encoder) error {
	start, goesOn := 0, b.goesOn
	b.tokens = make([]uint32, 0, len(b.text)/3)
	for i := range b.parts {
		text := b.text[start:b.parts[i].end]
		start = b.parts[i].end
		tokens, repaired, err := e.Append(b.tokens, text, goesOn)
		if err != nil {
			return fmt.Errorf("tokenize: %w", err)
		}
		if repaired {
			b.repaired++
		}
		b.tokens = tokens
		b.parts[i].end = len(tokens)
		goesOn = b.parts[i].more
	}
	b.text = nil
	return nil
}
