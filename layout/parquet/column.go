package parquet

import (
	"fmt"
	"slices"
	"strings"
)

// Column is a leaf of the schema.
type Column struct {
	Path   []string
	Kind   string // for people: "text", "binary", "i32", "list of u16"
	Text   bool   // texts, or bytes that nobody calls anything else
	Tokens bool   // lists of integers
	// Element is the type of the elements of a value as NumPy has it, such as "f32". It is "u8" for bytes and texts, and "" for values
	// that have no such type.
	Element string
	Bytes   bool // values of any number of bytes
	Lists   int  // how many lists a value lies in

	physical       int
	size           int // bytes of a value in the plain encoding, 0 for any
	maxDef, maxRep int
	listDef        int // from here on the definition levels are of elements, below of lists that are empty or null
	bits           int // of a value of a fixed size, as it is annotated
	unsigned       bool
	hides          int    // names that Field leaves out below
	hidden         uint64 // a bit for each name of Path that Field leaves out
	named          int    // bytes of Path, with dots
	long           bool   // Path is cut off, and the column is not read
	padded         bool   // bytes may follow the values of a page
}

// maxPath bounds the bytes of a column's path. All columns below a group repeat its name.
const maxPath = 4096

// Name is the column's path with dots.
func (c *Column) Name() string { return strings.Join(c.Path, ".") }

// Field is the column's path with dots, without the levels that only make a list.
func (c *Column) Field() string {
	field := ""
	for i, name := range c.Path {
		if c.hidden&(1<<i) == 0 {
			field = strings.TrimPrefix(field+"."+name, ".")
		}
	}
	return field
}

// Width is the bytes of a value of a fixed size, or 1.
func (c *Column) Width() int64 {
	if c.Bytes {
		return 1
	}
	return int64(c.bits / 8)
}

// walk makes columns of n subtrees at the start of tree, and returns the rest.
func (f *File) walk(t *thrift, tree []element, n int64, path []string, above Column) ([]element, error) {
	for ; n > 0; n-- {
		if t.take(nameMemory * int64(len(path)+1)); t.err != nil {
			return nil, t.err
		}
		if len(tree) == 0 || len(path) > maxThriftDepth {
			return nil, fmt.Errorf("%w: its schema is cut off, or nested more than %d deep", ErrBroken, maxThriftDepth)
		}
		e := tree[0]
		tree = tree[1:]
		c := above
		if room := max(maxPath-c.named, 0); len(e.name) > room {
			e.name, c.long = e.name[:room], true
		}
		c.named += len(e.name) + 1
		c.Path = slices.Concat(path, []string{e.name})
		c.name(e)
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
			if tree, err = f.walk(t, tree, e.children, c.Path, c); err != nil {
				return nil, err
			}
			continue
		}
		c.physical, c.padded = e.physical, f.padded
		c.describe(e)
		f.Columns = append(f.Columns, c)
	}
	return tree, nil
}

// name tells whether Field has an element of the schema. It has each, unless it only makes a list: such a group is annotated, and has a repeated group with one
// child, the element (apache/parquet-format, LogicalTypes.md, "Lists").
func (c *Column) name(e element) {
	const list, listType = 3, 3
	hidden := c.hides > 1 && e.repetition == 2 || c.hides == 1
	switch {
	case hidden && c.hides > 1 && e.children == 1:
		c.hides = 1
	default:
		c.hides = 0
	}
	if hidden {
		c.hidden |= 1 << (len(c.Path) - 1)
	}
	if e.children == 1 && (e.converted == list || e.logical == listType) {
		c.hides = 2
	}
}

// describe names a leaf's type. A binary column without an annotation may hold text: older writers give none.
func (c *Column) describe(e element) {
	const utf8, json, enum, jsonType, stringType, enumType = 0, 19, 4, 12, 1, 4
	const decimal, timestamp, nullType, uuidType, float16Type = 5, 10, 11, 14, 15 // of the older kind, decimal to timestamp; decimal of both
	if c.long {
		c.Kind = fmt.Sprintf("values below a path of more than %d bytes", maxPath)
		return
	}
	switch c.physical {
	case typeBytes:
		c.Bytes = true
		switch {
		case e.converted == utf8 || e.logical == stringType, e.converted == json || e.logical == jsonType, e.converted == enum || e.logical == enumType:
			c.Kind, c.Text, c.Element = "text", true, "u8"
		case e.converted < 0 && e.logical == 0:
			c.Kind, c.Text, c.Element = "binary", true, "u8"
		default:
			c.Kind = "bytes of another meaning"
		}
	case typeInt32, typeInt64:
		c.integer(e)
		c.Tokens, c.Element = c.maxRep == 1, c.Kind
		switch {
		case e.logical == nullType:
			c.Kind, c.Tokens, c.Element = "null", false, ""
		case e.logical == decimal || e.logical == 0 && e.converted == decimal:
			c.Kind, c.Tokens, c.Element = "decimal", false, ""
		case e.logical != 0 && e.logical != 10 || e.logical == 0 && e.converted > decimal && e.converted <= timestamp:
			c.Kind, c.Tokens, c.Element = "date or time", false, ""
		}
	case typeFloat:
		c.Kind, c.Element, c.size = "float", "f32", 4
	case typeDouble:
		c.Kind, c.Element, c.size = "float", "f64", 8
	case typeBoolean:
		c.Kind = "bool"
	default:
		c.Kind = "bytes of a fixed length"
		if c.physical != typeFixed || e.length <= 0 || e.length > MaxPage {
			break
		}
		c.size = int(e.length)
		switch {
		case e.logical == float16Type && c.size == 2:
			c.Kind, c.Element = "float", "f16"
		case e.converted < 0 && (e.logical == 0 || e.logical == uuidType):
			c.Element = "u8"
		}
	}
	if c.bits == 0 {
		c.bits = 8 * c.size
	}
	if c.maxRep > 0 {
		c.Kind = strings.Repeat("list of ", c.maxRep) + c.Kind
		c.Text = false
	}
	c.Lists = c.maxRep
}

// integer gives the integer type of a leaf: that of the physical type, or a narrower one that an annotation
// promises.
func (c *Column) integer(e element) {
	const unsigned8, signed8, signed64 = 11, 15, 18 // converted types: in each kind 8, 16, 32 and 64 bits
	c.size = 4
	if c.physical == typeInt64 {
		c.size = 8
	}
	c.bits = 8 * c.size
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
		if len(below) < 20 && strings.HasPrefix(c.Name(), name+".") {
			below = append(below, fmt.Sprintf("%q is %s", c.Name(), c.Kind))
		}
		if len(all) < 20 {
			all = append(all, fmt.Sprintf("%.60q is %s", c.Name(), c.Kind))
		}
	}
	if len(below) > 0 {
		return -1, fmt.Sprintf("column %q is nested, and has no texts of its own: %s", name, strings.Join(below, ", "))
	}
	return -1, fmt.Sprintf("there is no column %q, name the one that holds the text with --text-key: %s", name, strings.Join(all, ", "))
}
