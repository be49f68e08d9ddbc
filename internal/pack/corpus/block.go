package corpus

// Document is a document, or a part of one: text, or tokens where a column holds lists of them.
type Document struct {
	Text      []byte   // valid until yield returns
	Tokens    []uint32 // valid until yield returns
	More      bool     // the document goes on in the next Document; such a text may be tokenized on its own
	Continued bool     // it goes on with the Document before
	// Repaired says that the source replaced invalid UTF-8. A tokenizer finds the rest.
	Repaired bool
}

// Position is a place between two documents: everything before it was read.
type Position struct {
	File int   `json:"file"` // index of the file in [Corpus.Files]
	At   int64 `json:"at"`   // bytes of the decompressed file; of a columnar one, where a row group or batch begins
	Item int64 `json:"item"` // lines or elements before At, or rows behind it; below 0 where nobody counted
	In   bool  `json:"in"`   // within a document that goes on: one cannot begin here
}

// LeftOut is a file that was not read, and why.
type LeftOut struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	Reason string `json:"reason"`
}

// blockBytes and blockDocuments are how much a block holds, where its documents allow it.
const (
	blockBytes     = 256 << 10
	blockDocuments = 4096
)

// Block is documents that follow each other, not parsed yet.
type Block struct {
	Next    Position // behind the block
	Read    int64    // stored bytes of the span that this block and everything before it took
	LeftOut *LeftOut // set in a block without documents

	name   string
	key    string
	raw    []byte
	tokens int
	first  Position
	limit  int
	parse  func(yield func(Document) error) error
	free   func(raw []byte)
}

// Bytes returns about how much memory the block takes.
func (b *Block) Bytes() int { return cap(b.raw) + 4*b.tokens }

// Documents yields the documents, once. Its errors name the file.
func (b *Block) Documents(yield func(Document) error) error {
	if b.parse == nil {
		return nil
	}
	passed := error(nil) // an error of yield is not about this file
	err := b.parse(func(d Document) error {
		passed = yield(d)
		return passed
	})
	if b.free != nil {
		b.free(b.raw)
	}
	b.raw, b.parse = nil, nil
	if err == nil || passed != nil {
		return passed
	}
	return &FileError{b.name, err}
}

// FileError is an error of one file's content.
type FileError struct {
	Name string
	Err  error
}

func (e *FileError) Error() string { return "read " + e.Name + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }
