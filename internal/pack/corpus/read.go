package corpus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hbmfs/hbmfs/layout"
)

// Span is the bytes [From, To) of a file.
type Span struct {
	File     int
	From, To int64
}

// reader reads one span.
type reader struct {
	corpus *Corpus
	span   Span
	file   *File
	stream *stream // nil for columnar files, which are read out of order
	used   int64   // of a columnar file
	yield  func(*Block) error
	passed error // the error of yield
}

// Read yields the blocks of a span, from a position in it on. The zero At and Item begin at its start. yield's error
// ends it and is returned; others name the file.
func (c *Corpus) Read(ctx context.Context, s Span, from Position, yield func(*Block) error) error {
	r := &reader{corpus: c, span: s, file: &c.Files[s.File], yield: yield}
	from.File = s.File
	err := r.open(ctx, from)
	if err == nil || r.passed != nil {
		return r.passed
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &FileError{r.file.Name, err}
}

func (r *reader) open(ctx context.Context, from Position) error {
	f, err := r.file.open(ctx)
	if err != nil {
		return err
	}
	err = r.read(ctx, f, from)
	if r.passed == nil && ctx.Err() == nil {
		if changed := f.check(); changed != nil {
			err = changed // which explains the other
		}
	}
	return errors.Join(err, f.close())
}

// read identifies the file, and reads it so.
func (r *reader) read(ctx context.Context, f content, from Position) error {
	head := make([]byte, min(sniffBytes, r.file.Size))
	if n, err := f.ReadAt(head, 0); n < len(head) {
		return err
	}
	switch {
	case r.file.Size == 0:
		return r.emit(&Block{Next: r.over(), parse: func(yield func(Document) error) error { return yield(Document{}) }})
	case isParquet(head):
		return r.parquet(ctx, f, from)
	case isArrow(head):
		return r.arrow(ctx, f, from)
	}
	s, err := newStream(r.file.Name, io.NewSectionReader(f, 0, r.file.Size))
	if err != nil {
		return err
	}
	defer func() { r.stream.close() }()
	r.stream = s
	var in io.Reader = s
	if s.format != "" {
		if head, err = readHead(s); err != nil {
			return err
		}
		in = io.MultiReader(bytes.NewReader(head), s)
		if isParquet(head) || isArrow(head) {
			return r.leaveOut("it is a compressed Parquet or Arrow file: decompress it first")
		}
	}
	if len(head) == 0 { // the decompressed file is empty
		return r.emit(&Block{Next: r.over(), parse: func(yield func(Document) error) error { return yield(Document{}) }})
	}
	if why := refusal(head, r.file.named || r.corpus.lenient()); why != "" {
		return r.leaveOut(why)
	}
	kind := r.corpus.kindOfText(r.file, head)
	switch {
	case kind == asText && r.file.beside && !r.corpus.lenient():
		return r.leaveOut("it lies beside Parquet or Arrow files: name it, or use --include")
	case r.corpus.tokens:
		return errMixed
	}
	if s.format == "" && kind == asLines {
		return r.plainLines(ctx, f, from)
	}
	if r.span.From > 0 { // it belongs to the span of its first byte
		return r.emit(&Block{Next: r.over()})
	}
	if from.At > 0 {
		if _, err := io.CopyN(io.Discard, in, from.At); err != nil {
			return fmt.Errorf("skip what was read before: %w", err)
		}
	}
	switch kind {
	case asLines:
		return r.lines(ctx, in, from, -1)
	case asArray:
		return r.array(ctx, in, from)
	}
	return r.text(ctx, in)
}

// readHead reads the first bytes of a stream.
func readHead(in *stream) ([]byte, error) {
	head := make([]byte, sniffBytes)
	n, err := io.ReadFull(in, head)
	if n > 0 || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // a stream repeats its error
	}
	return head[:n], err
}

// plainLines reads the lines of a file that can be read from anywhere.
func (r *reader) plainLines(ctx context.Context, f content, from Position) error {
	if from.At == 0 && r.span.From > 0 { // the first line that begins in the span
		at, err := lineStart(ctx, f, r.span.From, r.file.Size)
		if err != nil {
			return err
		}
		from.At, from.Item = at, -1
	}
	if from.At >= r.span.To {
		return r.emit(&Block{Next: r.over()})
	}
	s, err := newStream("", io.NewSectionReader(f, from.At, r.file.Size-from.At))
	if err != nil {
		return err
	}
	r.stream, r.used = s, from.At
	s.format, s.r = "", s.buf // the beginning of the line does not matter
	return r.lines(ctx, s, from, r.span.To)
}

// lineStart returns where the first line begins at or behind at.
func lineStart(ctx context.Context, f io.ReaderAt, at, size int64) (int64, error) {
	buf := make([]byte, 256<<10)
	for at--; at < size; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := f.ReadAt(buf[:min(int64(len(buf)), size-at)], at)
		if i := bytes.IndexByte(buf[:n], '\n'); i >= 0 {
			return at + int64(i) + 1, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if n == 0 {
			break
		}
		at += int64(n)
	}
	return size, nil
}

// leaveOut yields why the file has no documents. One that a user named is an error.
func (r *reader) leaveOut(why string) error {
	if r.file.named {
		return fmt.Errorf("%s. Pack reads text, JSON Lines, JSON arrays, Parquet, Arrow and token datasets", why)
	}
	b := &Block{Next: r.over()}
	if r.span.From == 0 {
		b.LeftOut = &LeftOut{Name: r.file.Name, Size: r.file.Size, Reason: why}
	}
	return r.emit(b)
}

// over is the position behind the span.
func (r *reader) over() Position { return Position{File: r.span.File + 1} }

func (r *reader) block(raw []byte) *Block {
	return &Block{raw: raw, key: r.corpus.opt.Key, free: r.corpus.recycle}
}

func (r *reader) buffer() []byte { return r.corpus.buffer() }

func (r *reader) emit(b *Block) error {
	b.name = r.file.Name
	switch {
	case b.Next.File != r.span.File:
		b.Read = r.span.To - r.span.From
	case r.stream != nil:
		b.Read = min(max(r.used+r.stream.offset()-r.span.From, 0), r.span.To-r.span.From)
	default:
		b.Read = min(max(r.used-r.span.From, 0), r.span.To-r.span.From)
	}
	r.passed = r.yield(b)
	return r.passed
}

// Readable reports whether a local file is one of the kinds that Read reads. The error is of a file that cannot be read.
func (c *Corpus) Readable(ctx context.Context, name string) (bool, error) {
	probe := New(c.opt)
	if err := probe.Add(ctx, name); err != nil {
		return false, err
	}
	f := &probe.Files[0]
	file, err := f.open(ctx)
	if err != nil {
		return false, err
	}
	defer file.close() //nolint:errcheck // only read
	head := make([]byte, min(sniffBytes, f.Size))
	if n, err := file.ReadAt(head, 0); n < len(head) {
		return false, err
	}
	if isParquet(head) {
		return true, nil
	}
	s, err := newStream(f.Name, io.NewSectionReader(file, 0, f.Size))
	if err != nil {
		return false, err
	}
	defer s.close()
	if head, err = readHead(s); err != nil {
		return false, err
	}
	if isArrow(head) {
		_, err := layout.OpenArrowTexts(ctx, &layout.Object{Name: f.Name, Size: f.Size, Origin: originOf{file}}, c.opt.Key)
		return err == nil, nil
	}
	return refusal(head, true) == "", nil
}
