package layout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// arrowSchema is the columns of an Arrow stream. Source of all tables and numbers: apache/arrow, format/Schema.fbs and
// format/Message.fbs.
type arrowSchema struct {
	columns   []arrowColumn // of the top level
	bigEndian bool
}

// arrowColumn is a column, and where a record batch describes it. A batch lists nodes and buffers of all columns in one
// row, those of a column before those of its children.
type arrowColumn struct {
	name, kind   string // kind is for people: "list of i32", "utf8"
	list         bool   // of integers, as tokens are
	text         int    // bytes of an offset of texts, 0 where they are none
	node, buffer int64  // the first ones of the column

	// Set where the values are numbers or bytes that lie in one buffer, else form has no type.
	form
	width  int   // bytes of an offset: 4 or 8; 0 for values of a fixed size
	depth  int64 // nodes below the first one
	lists  []int // bytes of an offset, for each of the nested lists that an array of datasets is made of
	values int64 // which of the column's buffers has the values
	leaf   int64 // elements of an item of the last node, 0 where these are bytes without a number of their own
}

// The members of the union Type that a reader must tell apart to know a column's buffers.
const (
	arrowNull = iota + 1
	arrowInt
	arrowFloat
	arrowBinary
	arrowUtf8
	arrowBool
	arrowDecimal
	arrowDate
	arrowTime
	arrowTimestamp
	arrowInterval
	arrowList
	arrowStruct
	arrowUnion
	arrowFixedSizeBinary
	arrowFixedSizeList
	arrowMap
	arrowDuration
	arrowLargeBinary
	arrowLargeUtf8
	arrowLargeList
)

const (
	maxArrowFields = 1 << 16 // with all children: an offset may lead to the same child again and again
	maxArrowDepth  = 64
	maxArrowNotes  = 64   // of a column that are read
	maxArrowNote   = 1024 // bytes of the shape of an array
)

// arrowFields counts nodes and buffers before a field while the schema is walked.
type arrowFields struct {
	fields, nodes, buffers int64
	lost                   bool // a type before it has an unknown number of buffers
}

// parseArrowSchema reads a message that holds a schema.
func parseArrowSchema(message []byte) (*arrowSchema, error) {
	f := &flatbuffer{buf: message}
	kind, t, _ := arrowMessage(f)
	if f.err == nil && kind != arrowSchemaMessage {
		f.fail("the first message is of type %d, a schema is type %d", kind, arrowSchemaMessage)
	}
	s := &arrowSchema{bigEndian: t.number(0, 2) != 0}
	var before arrowFields
	columns := t.vector(1, 4)
	for i, room := int64(0), len(message); i < columns.n && f.err == nil; i++ {
		field := columns.table(i)
		name := field.text(0)
		if room -= len(name); room < 0 {
			f.fail("the names of the columns take more bytes than the schema has")
			break
		}
		c := arrowColumn{name: string(name), node: before.nodes, buffer: before.buffers}
		c.describe(field)
		if before.lost {
			c.list, c.text, c.form = false, 0, form{}
			c.kind += " (behind a union or view, where its buffers cannot be found)"
		}
		s.columns = append(s.columns, c)
		before.count(f, field, 0)
	}
	return s, f.err
}

// The members of the union MessageHeader.
const (
	arrowSchemaMessage     = 1
	arrowDictionaryMessage = 2
	arrowBatchMessage      = 3
)

// arrowMessage returns the type and table of a message's header, and the bytes of its body.
func arrowMessage(f *flatbuffer) (kind int64, header flatTable, body int64) {
	m := f.root()
	if version := m.number(0, 2); f.err == nil && (version < 3 || version > 4) {
		f.fail("the metadata is of version V%d, V4 and V5 are known", version+1)
	}
	return m.number(1, 1), m.table(2), m.number(3, 8)
}

// describe finds the type of a column.
func (c *arrowColumn) describe(field flatTable) {
	kind := field.number(2, 1)
	if field.has(4) {
		c.kind = "dictionary"
		return
	}
	switch c.kind = arrowKind(kind); kind {
	case arrowInt:
		c.kind = arrowIntType(field).String()
	case arrowUtf8:
		c.text = 4
	case arrowLargeUtf8:
		c.text = 8
	case arrowList, arrowLargeList, arrowFixedSizeList:
		if children := field.vector(5, 4); children.n == 1 {
			child := children.table(0)
			item := child.number(2, 1)
			if c.kind += " of " + arrowKind(item); item == arrowInt && !child.has(4) {
				c.list = arrowIntType(child) != DTypeUnknown
				c.kind = arrowKind(kind) + " of " + arrowIntType(child).String()
			}
		}
	}
	if !c.find(field) {
		c.form, c.list = form{}, false
	}
}

// arrayShape returns the shape that an array of huggingface/datasets has, nil for other columns and for arrays whose first dimension varies.
// Source: features/features.py there, _ArrayXDExtensionType.
func arrayShape(field flatTable) []int64 {
	notes := field.vector(6, 4)
	var name, about []byte
	for i := range min(notes.n, maxArrowNotes) {
		switch note := notes.table(i); string(note.text(0)) {
		case "ARROW:extension:name":
			name = note.text(1)
		case "ARROW:extension:metadata":
			about = note.text(1)
		}
	}
	if !bytes.HasPrefix(name, []byte("datasets.features.features.Array")) || len(about) > maxArrowNote {
		return nil
	}
	var parts [2]json.RawMessage // the dimensions, and the type of the values
	var shape []*int64
	if json.Unmarshal(about, &parts) != nil || json.Unmarshal(parts[0], &shape) != nil {
		return nil
	}
	var out []int64
	for _, n := range shape {
		if n == nil {
			return nil
		}
		out = append(out, *n)
	}
	return out
}

// find goes down to the values of a column: through a list, through lists of fixed size, or through lists that an array is made of.
func (c *arrowColumn) find(field flatTable) bool {
	array := arrayShape(field)
	for c.leaf = 1; c.depth < maxArrowDepth && !field.has(4); c.depth++ {
		t := field.table(3)
		if len(c.lists) < len(array) {
			kind := field.number(2, 1)
			if kind != arrowList && kind != arrowLargeList || !c.dimension(array[c.depth]) {
				return false
			}
			c.lists = append(c.lists, arrowOffset(kind))
			c.values += 2
			if children := field.vector(5, 4); children.n == 1 {
				field = children.table(0)
				continue
			}
			return false
		}
		switch kind := field.number(2, 1); kind {
		case arrowInt:
			c.dtype = arrowIntType(field)
			c.values++
			return true
		case arrowFloat:
			c.dtype = map[int64]DType{0: F16, 1: F32, 2: F64}[t.number(0, 2)]
			c.values++
			return true
		case arrowFixedSizeBinary:
			c.leaf, c.dtype = t.number(0, 4), U8
			c.values++
			return !c.ragged && c.dimension(c.leaf)
		case arrowBinary, arrowUtf8, arrowLargeBinary, arrowLargeUtf8:
			c.leaf, c.form = 0, bytesForm()
			c.values += 2
			c.width = arrowOffset(kind)
			return c.depth == 0
		case arrowList, arrowLargeList:
			c.ragged, c.width = true, arrowOffset(kind)
			c.values += 2
			if c.depth > 0 {
				return false
			}
		case arrowFixedSizeList:
			c.values++
			if c.ragged || !c.dimension(t.number(0, 4)) {
				return false
			}
		default:
			return false
		}
		children := field.vector(5, 4)
		if children.n != 1 {
			return false
		}
		field = children.table(0)
	}
	return false
}

// arrowOffset returns the bytes of an offset of lists or bytes.
func arrowOffset(kind int64) int {
	if kind == arrowLargeList || kind == arrowLargeBinary || kind == arrowLargeUtf8 {
		return 8
	}
	return 4
}

// dimension adds one to the shape. ok is false where the elements of a value are too many to count.
func (c *arrowColumn) dimension(n int64) (ok bool) {
	if ok = n > 0 && n <= math.MaxInt64/8; ok {
		_, ok = multiply(c.elements(), 8*n)
	}
	c.shape = append(c.shape, n)
	return ok
}

func arrowIntType(field flatTable) DType {
	t := field.table(3)
	kind := "u"
	if t.number(1, 1) != 0 {
		kind = "i"
	}
	return shortDType(fmt.Sprint(kind, t.number(0, 4)))
}

func arrowKind(kind int64) string {
	switch kind {
	case arrowNull:
		return "null"
	case arrowFloat:
		return "float"
	case arrowBinary, arrowLargeBinary, arrowFixedSizeBinary:
		return "binary"
	case arrowUtf8, arrowLargeUtf8:
		return "text"
	case arrowBool:
		return "bool"
	case arrowList, arrowLargeList, arrowFixedSizeList:
		return "list"
	case arrowDecimal:
		return "decimal"
	case arrowDate, arrowTime, arrowTimestamp, arrowInterval, arrowDuration:
		return "date or time"
	case arrowStruct:
		return "struct"
	case arrowMap:
		return "map"
	}
	return fmt.Sprintf("type %d", kind)
}

// count adds the nodes and buffers of a field and its children.
func (n *arrowFields) count(f *flatbuffer, field flatTable, depth int) {
	if n.fields++; n.fields > maxArrowFields || depth > maxArrowDepth {
		f.fail("the schema has more than %d fields, or is nested more than %d deep", maxArrowFields, maxArrowDepth)
		return
	}
	n.nodes++
	if field.has(4) { // of a dictionary, a batch holds the indices alone
		n.buffers += 2
		return
	}
	switch field.number(2, 1) {
	case arrowNull:
	case arrowInt, arrowFloat, arrowBool, arrowDecimal, arrowDate, arrowTime, arrowTimestamp, arrowInterval, arrowDuration,
		arrowFixedSizeBinary, arrowList, arrowLargeList, arrowMap:
		n.buffers += 2
	case arrowBinary, arrowUtf8, arrowLargeBinary, arrowLargeUtf8:
		n.buffers += 3
	case arrowStruct, arrowFixedSizeList:
		n.buffers++
	default: // unions, run-end encoding and views
		n.lost = true
		return
	}
	children := field.vector(5, 4)
	for i := int64(0); i < children.n && f.err == nil; i++ {
		n.count(f, children.table(i), depth+1)
	}
}

// tokens returns the column that holds the tokens, or says why there is none. It has the name that loaders expect, or
// is the only list of integers.
func (s *arrowSchema) tokens() (*arrowColumn, string) {
	var lists, all []string
	var only *arrowColumn
	for i := range s.columns {
		c := &s.columns[i]
		if len(all) < 10 {
			all = append(all, fmt.Sprintf("%.40q is %s", c.name, c.kind))
		}
		if c.list {
			only = c
			lists = append(lists, c.name)
		}
	}
	if s.bigEndian {
		return nil, "the numbers are big-endian: write the dataset on a little-endian machine"
	}
	for _, name := range tokenColumns() {
		for i := range s.columns {
			if c := &s.columns[i]; c.list && c.name == name {
				return c, ""
			}
		}
	}
	switch len(lists) {
	case 0:
		return nil, "no column holds lists of integers: " + strings.Join(all, ", ")
	case 1:
		return only, ""
	}
	return nil, severalLists(lists)
}

// tokenColumns are the names under which loaders look for lists of tokens.
func tokenColumns() []string { return []string{"input_ids", "tokens", "token_ids"} }

// severalLists says that it is not clear which of some columns holds the tokens.
func severalLists(names []string) string {
	var quoted []string
	for _, name := range names[:min(len(names), 10)] {
		quoted = append(quoted, fmt.Sprintf("%.40q", name))
	}
	return "several columns hold lists of integers and none is called input_ids, tokens or token_ids: " + strings.Join(quoted, ", ")
}

// signature tells streams of different columns apart, in whatever order they have them. Where several columns have the name of the tokens, the
// first of them has the tokens.
func (s *arrowSchema) signature() string {
	columns := make([]string, 0, len(s.columns)+1)
	add := func(c *arrowColumn) { columns = append(columns, fmt.Sprintf("%q %s %v,", c.name, c.kind, c.shape)) }
	for i := range s.columns {
		add(&s.columns[i])
	}
	slices.Sort(columns)
	if tokens, _ := s.tokens(); tokens != nil {
		add(tokens)
	}
	return strings.Join(columns, "")
}
