// Package parquet reads columns of texts and of token lists out of Parquet files. It reads footers, pages, and values
// in the encodings that writers use. Source of all numbers: apache/parquet-format, parquet.thrift, Encodings.md.
//
// It is written for files that nobody vouches for. No count or size is used before it was compared with the bytes that
// are there. A page of more than [MaxPage] bytes is refused. The known libraries believe the counts in a footer: one
// kilobyte makes them ask for a terabyte.
package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// Magic is how a file begins and ends, MagicEncrypted one whose footer is encrypted.
const (
	Magic          = "PAR1"
	MagicEncrypted = "PARE"
)

// MaxPage bounds a page, decompressed, and a footer. 256 MiB.
const MaxPage = 256 << 20

// ErrBroken says that a file is no whole Parquet file.
var ErrBroken = errors.New("the Parquet file is broken")

// ErrUnread says that a file is well, and this package does not read it.
var ErrUnread = errors.New("this Parquet file is not read")

// The physical types.
const (
	typeBoolean = iota
	typeInt32
	typeInt64
	typeInt96
	typeFloat
	typeDouble
	typeBytes
	typeFixed
)

// File is the footer of a file.
type File struct {
	Rows    int64
	Columns []Column // the leaves
	Groups  []Group
	Arrow   []byte // the schema that an Arrow library wrote beside that of Parquet, in base64; nil for none

	r      io.ReaderAt
	size   int64
	tree   []element
	padded bool    // as in Column: of the writer
	starts []int64 // at which row each group begins, and the end
}

// Group is a row group.
type Group struct {
	Rows  int64
	Start int64 // in the file

	chunks []chunk
}

// chunk is a column of a row group.
type chunk struct {
	place
	encodings int64   // a bit for each that its pages have
	defs      []int64 // how many values have each definition level, as the writer says; nil for unsaid
	nulls     int64   // values that are null, as the writer says; -1 for unsaid
	size      int64   // bytes of all values of any number of bytes, as the writer says; -1 for unsaid
}

// place is all that reading the pages of a chunk takes.
type place struct {
	start, bytes int64
	values       int64
	codec        int32
	elsewhere    bool // in another file
	encrypted    bool
}

// element is an entry of the schema, which is a tree in depth-first order.
type element struct {
	name       string
	physical   int
	length     int64 // bytes of a value of a fixed length
	repetition int64 // 0 required, 1 optional, 2 repeated
	children   int64
	converted  int64 // -1 for none
	logical    int
	bits       int64 // of an integer, 0 for unsaid
	unsigned   bool
}

// Bytes that parts of a footer take at most, with the columns that are made of them. A byte of the file may make one.
const (
	elementMemory = 512
	nameMemory    = 16 // for each name in a column's path
	groupMemory   = 192
	chunkMemory   = 224
)

// FooterMemory is how many bytes a footer of n bytes may take, with what is made of it. Those of real writers take half of it at most. 256
// MiB are a million columns of row groups.
func FooterMemory(n int64) int64 { return n + min(4<<20+16*n, MaxPage) }

// Open reads the footer.
func Open(r io.ReaderAt, size int64) (*File, error) {
	n, err := FooterSize(r, size)
	if err != nil {
		return nil, err
	}
	footer := make([]byte, n)
	if err := readFull(r, footer, size-8-n); err != nil {
		return nil, err
	}
	f := &File{r: r, size: size}
	if err := f.parse(footer); err != nil {
		return nil, err
	}
	return f, nil
}

// FooterSize returns how many bytes the footer has, compared with the file's size.
func FooterSize(r io.ReaderAt, size int64) (int64, error) {
	var tail [8]byte
	if size < 12 {
		return 0, fmt.Errorf("%w: it has %d bytes", ErrBroken, size)
	}
	if err := readFull(r, tail[:], size-8); err != nil {
		return 0, err
	}
	switch string(tail[4:]) {
	case Magic:
	case MagicEncrypted:
		return 0, fmt.Errorf("%w: its footer is encrypted", ErrUnread)
	default:
		return 0, fmt.Errorf("%w: it does not end with %s, so it is cut off or still written", ErrBroken, Magic)
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if n > size-12 || n > MaxPage {
		return 0, fmt.Errorf("%w: its footer is said to have %d bytes, the file has %d", ErrBroken, n, size)
	}
	return n, nil
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %d: %w", len(p), off, err)
}

func (f *File) parse(footer []byte) error {
	t := &thrift{buf: footer, left: FooterMemory(int64(len(footer))) - int64(len(footer))}
	t.fields(thriftStruct, func(id int, kind byte) bool {
		switch id {
		case 2:
			t.list(kind, func(kind byte) { f.tree = append(f.tree, readElement(t, kind)) })
		case 3:
			f.Rows = t.number(kind)
		case 4:
			t.list(kind, func(kind byte) { f.Groups = append(f.Groups, readGroup(t, kind)) })
		case 5:
			t.list(kind, func(kind byte) { f.readNote(t, kind) })
		case 6:
			f.padded = bytes.HasPrefix(t.bytes(kind), []byte("fastparquet"))
		default:
			return false
		}
		return true
	})
	var rest []element
	var err error
	if t.err == nil && len(f.tree) > 0 {
		rest, err = f.walk(t, f.tree[1:], f.tree[0].children, nil, Column{})
	}
	switch {
	case errors.Is(t.err, errRoom):
		return fmt.Errorf("%w: its footer of %d bytes describes too many columns and row groups: write larger row groups", ErrUnread, len(footer))
	case t.err != nil:
		return fmt.Errorf("%w: %w", ErrBroken, t.err)
	case len(f.tree) == 0:
		return fmt.Errorf("%w: it has no schema", ErrBroken)
	case err != nil:
		return err
	case len(rest) > 0:
		return fmt.Errorf("%w: %d elements of the schema belong to no column", ErrBroken, len(rest))
	}
	return f.check()
}

// check compares the row groups with the schema and the file.
func (f *File) check() error {
	rows, most := int64(0), f.Rows
	f.starts = make([]int64, 1, len(f.Groups)+1)
	if f.Rows == 0 {
		most = math.MaxInt64 // some writers leave the sum out, and readers take that of the row groups
	}
	for i := range f.Groups {
		g := &f.Groups[i]
		if len(g.chunks) != len(f.Columns) {
			return fmt.Errorf("%w: row group %d has %d columns, the schema %d", ErrBroken, i, len(g.chunks), len(f.Columns))
		}
		g.Start = f.size
		for k, c := range g.chunks {
			if g.Rows == 0 {
				break // writers put its columns anywhere
			}
			if c.encrypted {
				if column := &f.Columns[k]; !strings.HasPrefix(column.Kind, "encrypted ") {
					column.Kind = "encrypted " + column.Kind
				}
				continue // where it lies may be encrypted, too
			}
			if c.start < 4 || c.bytes < 0 || c.start > f.size-c.bytes || c.values < 0 {
				return fmt.Errorf("%w: row group %d has a column of %d bytes at %d, the file has %d", ErrBroken, i, c.bytes, c.start, f.size)
			}
			g.Start = min(g.Start, c.start)
		}
		if g.Rows > 0 && g.Start == f.size { // nothing says where it lies, and a reader of the file learns why
			g.Start = int64(len(Magic))
		}
		if g.Rows < 0 || rows > most-g.Rows {
			return fmt.Errorf("%w: its row groups have more than its %d rows", ErrBroken, f.Rows)
		}
		rows += g.Rows
		f.starts = append(f.starts, rows)
	}
	if f.Rows == 0 {
		f.Rows = rows
	}
	if rows != f.Rows {
		return fmt.Errorf("%w: its row groups have %d rows, the file %d", ErrBroken, rows, f.Rows)
	}
	return nil
}

// readNote reads a key and a value that writers put into the footer.
func (f *File) readNote(t *thrift, kind byte) {
	var key, value []byte
	t.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			key = t.bytes(kind)
		case 2:
			value = t.bytes(kind)
		default:
			return false
		}
		return true
	})
	if string(key) == "ARROW:schema" {
		f.Arrow = bytes.Clone(value)
	}
}

func readElement(t *thrift, kind byte) element {
	t.take(elementMemory)
	e := element{physical: -1, converted: -1}
	t.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			e.physical = int(t.number(kind))
		case 2:
			e.length = t.number(kind)
		case 3:
			e.repetition = t.number(kind)
		case 4:
			e.name = string(t.bytes(kind))
		case 5:
			e.children = t.number(kind)
		case 6:
			e.converted = t.number(kind)
		case 10:
			t.fields(kind, func(id int, kind byte) bool {
				e.logical = id
				if id != 10 { // an integer has a width and a sign
					return false
				}
				t.fields(kind, func(id int, kind byte) bool {
					switch id {
					case 1:
						e.bits = t.number(kind)
						return true
					case 2:
						e.unsigned = kind == thriftFalse
					}
					return false
				})
				return true
			})
		default:
			return false
		}
		return true
	})
	return e
}

func readGroup(t *thrift, kind byte) Group {
	t.take(groupMemory)
	g := Group{}
	t.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			t.list(kind, func(kind byte) { g.chunks = append(g.chunks, readChunk(t, kind)) })
		case 3:
			g.Rows = t.number(kind)
		default:
			return false
		}
		return true
	})
	return g
}

func readChunk(t *thrift, kind byte) chunk {
	t.take(chunkMemory)
	c := chunk{nulls: -1, size: -1}
	plain, dictionary, codec := false, int64(0), int64(0)
	t.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			c.elsewhere = len(t.bytes(kind)) > 0
		case 3:
			plain = true
			numbers := map[int]*int64{4: &codec, 5: &c.values, 7: &c.bytes, 9: &c.start, 11: &dictionary}
			t.numbers(kind, numbers, func(id int, kind byte) bool {
				switch id {
				case 2:
					t.list(kind, func(kind byte) { c.encodings |= 1 << (t.number(kind) & 63) })
				case 12:
					t.numbers(kind, map[int]*int64{3: &c.nulls}, nil)
				case 16:
					readSizes(t, kind, &c)
				default:
					return false
				}
				return true
			})
		case 8:
			c.encrypted = true // also beside metadata, which is a redacted copy for readers without the key
			return false
		default:
			return false
		}
		return true
	})
	c.encrypted = c.encrypted || !plain
	c.codec = int32(min(uint64(codec), math.MaxInt32))
	if dictionary > 0 && dictionary < c.start { // some writers put a wrong one behind it
		c.start = dictionary
	}
	return c
}

// readSizes reads a chunk's statistics of sizes: how many bytes its values have, and how many of them each definition level.
func readSizes(t *thrift, kind byte, c *chunk) {
	t.numbers(kind, map[int]*int64{1: &c.size}, func(id int, kind byte) bool {
		if id != 3 {
			return false
		}
		t.list(kind, func(kind byte) {
			t.take(8)
			c.defs = append(c.defs, t.number(kind))
		})
		return true
	})
}
