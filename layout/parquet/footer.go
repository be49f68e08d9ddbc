// Package parquet reads columns of texts and of token lists out of Parquet files. It reads footers, pages, and values
// in the encodings that writers use. Source of all numbers: apache/parquet-format, parquet.thrift, Encodings.md.
//
// It is written for files that nobody vouches for. No count or size is used before it was compared with the bytes that
// are there. A page of more than [MaxPage] bytes is refused. The known libraries believe the counts in a footer: one
// kilobyte makes them ask for a terabyte.
package parquet

import (
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

	r    io.ReaderAt
	size int64
	tree []element
}

// Column is a leaf of the schema.
type Column struct {
	Path   []string
	Kind   string // for people: "text", "binary", "i32", "list of u16"
	Text   bool   // texts, or bytes that nobody calls anything else
	Tokens bool   // lists of integers

	physical       int
	maxDef, maxRep int
	listDef        int // from here on the definition levels are of elements, below of lists that are empty or null
	bits           int // of an integer, as it is annotated
	unsigned       bool
}

// Name is the column's path with dots.
func (c *Column) Name() string { return strings.Join(c.Path, ".") }

// Group is a row group.
type Group struct {
	Rows  int64
	Start int64 // in the file

	chunks []chunk
}

// chunk is a column of a row group.
type chunk struct {
	codec        int64
	values       int64
	start, bytes int64
	encodings    int64   // a bit for each that its pages have
	defs         []int64 // how many values have each definition level, as the writer says; nil for unsaid
	elsewhere    bool    // in another file
	encrypted    bool
}

// element is an entry of the schema, which is a tree in depth-first order.
type element struct {
	name       string
	physical   int
	repetition int64 // 0 required, 1 optional, 2 repeated
	children   int64
	converted  int64 // -1 for none
	logical    int
	bits       int64 // of an integer, 0 for unsaid
	unsigned   bool
}

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
	t := &thrift{buf: footer}
	t.fields(thriftStruct, func(id int, kind byte) bool {
		switch id {
		case 2:
			t.list(kind, func(kind byte) { f.tree = append(f.tree, readElement(t, kind)) })
		case 3:
			f.Rows = t.number(kind)
		case 4:
			t.list(kind, func(kind byte) { f.Groups = append(f.Groups, readGroup(t, kind)) })
		default:
			return false
		}
		return true
	})
	if t.err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, t.err)
	}
	if len(f.tree) == 0 {
		return fmt.Errorf("%w: it has no schema", ErrBroken)
	}
	rest, err := f.walk(f.tree[1:], f.tree[0].children, nil, Column{})
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d elements of the schema belong to no column", ErrBroken, len(rest))
	}
	return f.check()
}

// check compares the row groups with the schema and the file.
func (f *File) check() error {
	rows, most := int64(0), f.Rows
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
	}
	if f.Rows == 0 {
		f.Rows = rows
	}
	if rows != f.Rows {
		return fmt.Errorf("%w: its row groups have %d rows, the file %d", ErrBroken, rows, f.Rows)
	}
	return nil
}

func readElement(t *thrift, kind byte) element {
	e := element{physical: -1, converted: -1}
	t.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			e.physical = int(t.number(kind))
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
	c := chunk{}
	plain, dictionary := false, int64(0)
	t.fields(kind, func(id int, kind byte) bool {
		switch id {
		case 1:
			c.elsewhere = len(t.bytes(kind)) > 0
		case 3:
			plain = true
			numbers := map[int]*int64{4: &c.codec, 5: &c.values, 7: &c.bytes, 9: &c.start, 11: &dictionary}
			t.numbers(kind, numbers, func(id int, kind byte) bool {
				switch id {
				case 2:
					t.list(kind, func(kind byte) { c.encodings |= 1 << (t.number(kind) & 63) })
				case 16:
					c.defs = readHistogram(t, kind)
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
	if dictionary > 0 && dictionary < c.start { // some writers put a wrong one behind it
		c.start = dictionary
	}
	return c
}

// readHistogram reads how many values have each definition level, out of a chunk's statistics of sizes.
func readHistogram(t *thrift, kind byte) (defs []int64) {
	t.fields(kind, func(id int, kind byte) bool {
		if id != 3 {
			return false
		}
		t.list(kind, func(kind byte) { defs = append(defs, t.number(kind)) })
		return true
	})
	return defs
}

// walk makes columns of n subtrees at the start of tree, and returns the rest.
func (f *File) walk(tree []element, n int64, path []string, above Column) ([]element, error) {
	for ; n > 0; n-- {
		if len(tree) == 0 || len(path) > maxThriftDepth {
			return nil, fmt.Errorf("%w: its schema is cut off, or nested more than %d deep", ErrBroken, maxThriftDepth)
		}
		e := tree[0]
		tree = tree[1:]
		c := above
		c.Path = append(path[:len(path):len(path)], e.name)
		switch e.repetition {
		case 1:
			c.maxDef++
		case 2:
			c.maxDef++
			c.maxRep++
			c.listDef = c.maxDef
		}
		if e.children > 0 {
			var err error
			if tree, err = f.walk(tree, e.children, c.Path, c); err != nil {
				return nil, err
			}
			continue
		}
		c.physical = e.physical
		c.describe(e)
		f.Columns = append(f.Columns, c)
	}
	return tree, nil
}

// describe names a leaf's type. A binary column without an annotation may hold text: older writers give none.
func (c *Column) describe(e element) {
	const utf8, json, enum, jsonType, stringType, enumType = 0, 19, 4, 12, 1, 4
	switch c.physical {
	case typeBytes:
		switch {
		case e.converted == utf8 || e.logical == stringType, e.converted == json || e.logical == jsonType, e.converted == enum || e.logical == enumType:
			c.Kind, c.Text = "text", true
		case e.converted < 0 && e.logical == 0:
			c.Kind, c.Text = "binary", true
		default:
			c.Kind = "bytes of another meaning"
		}
	case typeInt32, typeInt64:
		c.integer(e)
		c.Tokens = c.maxRep == 1
		if e.logical != 0 && e.logical != 10 {
			c.Kind, c.Tokens = "date or time", false
		}
	case typeFloat, typeDouble:
		c.Kind = "float"
	case typeBoolean:
		c.Kind = "bool"
	default:
		c.Kind = "bytes of a fixed length"
	}
	if c.maxRep > 0 {
		c.Kind = strings.Repeat("list of ", c.maxRep) + c.Kind
		c.Text = false
	}
}

// integer gives the integer type of a leaf: that of the physical type, or a narrower one that an annotation
// promises.
func (c *Column) integer(e element) {
	const unsigned8, signed8, signed64 = 11, 15, 18 // converted types: in each kind 8, 16, 32 and 64 bits
	c.bits = 32
	if c.physical == typeInt64 {
		c.bits = 64
	}
	bits, unsigned := e.bits, e.unsigned
	if e.logical == 0 && e.converted >= unsigned8 && e.converted <= signed64 {
		unsigned = e.converted < signed8
		bits = 8 << ((e.converted - unsigned8) % 4)
	}
	switch bits {
	case 8, 16, 32, 64:
		if int(bits) <= c.bits {
			c.bits, c.unsigned = int(bits), unsigned
		}
	}
	c.Kind = fmt.Sprintf("i%d", c.bits)
	if c.unsigned {
		c.Kind = fmt.Sprintf("u%d", c.bits)
	}
}

// Find returns the index of the column that people call name: its path with dots, or the list of that name. why
// names the mistake in the name.
func (f *File) Find(name string) (index int, why string) {
	var below, all []string
	for i := range f.Columns {
		c := &f.Columns[i]
		if c.Name() == name || c.Tokens && c.Path[0] == name {
			return i, ""
		}
		if strings.HasPrefix(c.Name(), name+".") {
			below = append(below, fmt.Sprintf("%q is %s", c.Name(), c.Kind))
		}
		if len(all) < 20 {
			all = append(all, fmt.Sprintf("%.60q is %s", c.Name(), c.Kind))
		}
	}
	if len(below) > 0 {
		return -1, fmt.Sprintf("column %q is nested, and has no texts of its own: %s", name, strings.Join(below[:min(len(below), 20)], ", "))
	}
	return -1, fmt.Sprintf("there is no column %q, name the one that holds the text with --text-key: %s", name, strings.Join(all, ", "))
}
