package pack

import (
	"context"
	"fmt"

	"github.com/hbmfs/hbmfs/layout"
)

// shard is one shard that is being written, in one of the formats.
type shard interface {
	write(tokens []uint32) error // a part of the current document
	endDocument() error
	// full reports whether no further document should go into this shard, for any token count.
	full() bool
	finish(ctx context.Context) error
	// save syncs the written bytes, and says how to go on. It is called between two documents.
	save() (*shardState, error)
}

// stream is a sequence of shards of one split. It decides where shards end: exactly after limit tokens where documents
// may span shards, else at the first end of a document from there on.
type stream struct {
	open       func(index int) (shard, error)
	limit      int64 // tokens, 0 for one shard of any size
	byDocument bool

	cur   shard
	inCur int64 // tokens in cur
	index int   // of the next shard
	inDoc int64 // tokens of the current document
}

func (s *stream) write(ctx context.Context, tokens []uint32) error {
	for len(tokens) > 0 {
		if s.cur == nil {
			var err error
			if s.cur, err = s.open(s.index); err != nil {
				return err
			}
			s.index, s.inCur = s.index+1, 0
		}
		part := tokens
		if room := s.limit - s.inCur; s.limit > 0 && !s.byDocument && room < int64(len(part)) {
			part = part[:room]
		}
		if err := s.cur.write(part); err != nil {
			return err
		}
		s.inCur += int64(len(part))
		s.inDoc += int64(len(part))
		tokens = tokens[len(part):]
		// A document whose last token is the shard's last must end in it. So the shard is closed only when the next
		// token comes or the document ends.
		if !s.byDocument && len(tokens) > 0 {
			if err := s.close(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stream) endDocument(ctx context.Context) error {
	if s.inDoc == 0 {
		return nil // a document without tokens is none to a loader
	}
	s.inDoc = 0
	if err := s.cur.endDocument(); err != nil {
		return err
	}
	if s.limit > 0 && s.inCur >= s.limit || s.cur.full() {
		return s.close(ctx)
	}
	return nil
}

// close finishes the current shard, if there is one.
func (s *stream) close(ctx context.Context) error {
	if s.cur == nil {
		return nil
	}
	cur := s.cur
	s.cur = nil
	return cur.finish(ctx)
}

// flat is a file of one array of tokens behind a header of fixed size: nanoGPT (none), llm.c and .npy.
type flat struct {
	file   *outFile
	dtype  layout.DType
	header func(tokens int64) ([]byte, error) // of the same length for every count
	buf    []byte
}

func newFlat(o *output, name string, d layout.DType, header func(tokens int64) ([]byte, error)) (*flat, error) {
	file, err := o.create(name)
	if err != nil {
		return nil, err
	}
	f := &flat{file: file, dtype: d, header: header}
	head, err := header(0)
	if err != nil {
		return nil, err
	}
	_, err = file.Write(head)
	return f, err
}

func (f *flat) write(tokens []uint32) error {
	var err error
	if f.buf, err = appendTokens(f.buf[:0], f.dtype, tokens); err != nil {
		return fmt.Errorf("write %q: %w", f.file.sums.Name, err)
	}
	f.file.sums.Tokens += int64(len(tokens))
	_, err = f.file.Write(f.buf)
	return err
}

func (f *flat) endDocument() error { f.file.sums.Documents++; return nil }
func (f *flat) full() bool         { return false }

func (f *flat) finish(ctx context.Context) error {
	head, err := f.header(f.file.sums.Tokens)
	if err != nil {
		return fmt.Errorf("write %q: %w", f.file.sums.Name, err)
	}
	if len(head) > 0 {
		if err := f.file.patch(head, 0); err != nil {
			return err
		}
	}
	return f.file.finish(ctx)
}

func (f *flat) save() (*shardState, error) {
	files, err := saveFiles(f.file)
	return &shardState{Files: files}, err
}
