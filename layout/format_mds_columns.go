package layout

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// mdsColumns is how a sample of an MDS shard is laid out (mosaicml/streaming, base/format/mds). It begins with a u32
// for every column of variable size, the bytes of its value. The values of all columns follow, both in the order of the
// columns' names.
type mdsColumns struct {
	names, encodings []string
	sizes            []int64 // bytes; -1 for a variable size
	tokens           mdsTokens
}

// mdsTokens is the column that holds a sample's tokens.
type mdsTokens struct {
	column int // -1 when there is none
	none   string
	name   string
	dtype  DType // DTypeUnknown where each sample says it
	// typed and shaped are those of mdsEncoding.
	typed, shaped bool
	bytes         bool // plain bytes, whose type is not written anywhere
}

// maxMDSColumns bounds the bytes that are read of a sample to find its tokens.
const maxMDSColumns = 4096

// newMDSColumns checks the columns of an index entry and finds the tokens among them.
func newMDSColumns(e *mdsEntry) (*mdsColumns, error) {
	n := len(e.ColumnNames)
	if n != len(e.ColumnEncodings) || n != len(e.ColumnSizes) || n > maxMDSColumns {
		return nil, fmt.Errorf("there are %d column_names, %d column_encodings and %d column_sizes, as many of each and at most %d are expected",
			n, len(e.ColumnEncodings), len(e.ColumnSizes), maxMDSColumns)
	}
	c := &mdsColumns{names: e.ColumnNames, encodings: e.ColumnEncodings}
	for i, size := range e.ColumnSizes {
		switch {
		case size == nil || *size == 0: // the reader takes 0 for a variable size too
			c.sizes = append(c.sizes, -1)
		case *size < 0 || *size > math.MaxUint32:
			return nil, fmt.Errorf("column %q has %d bytes", c.names[i], *size)
		default:
			c.sizes = append(c.sizes, *size)
		}
	}
	c.tokens = c.find()
	return c, nil
}

// find chooses the column of tokens: the one called tokens or input_ids, else the only array of integers.
func (c *mdsColumns) find() mdsTokens {
	var found []int
	for _, name := range []string{"tokens", "input_ids"} {
		if i := slices.Index(c.names, name); i >= 0 && len(found) == 0 {
			if t, ok := c.decode(i); ok {
				return t
			}
		}
	}
	for i := range c.names {
		if t, ok := c.decode(i); ok && !t.bytes {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return mdsTokens{column: -1, none: fmt.Sprintf("no column is an array of integers (the columns are %s)", c.list())}
	case 1:
		t, _ := c.decode(found[0])
		return t
	}
	return mdsTokens{column: -1, none: fmt.Sprintf("%d columns are arrays of integers and none is called tokens or input_ids (the columns are %s)", len(found), c.list())}
}

func (c *mdsColumns) list() string {
	const most = 8
	var out []string
	for i := range min(len(c.names), most) {
		out = append(out, fmt.Sprintf("%q", c.names[i]+": "+c.encodings[i]))
	}
	if len(c.names) > most {
		out = append(out, "...")
	}
	return strings.Join(out, ", ")
}

// decode reads the encoding of column i. ok is false for one that holds no tokens, or whose size contradicts its
// encoding.
func (c *mdsColumns) decode(i int) (t mdsTokens, ok bool) {
	e := c.encoding(i)
	t = mdsTokens{column: i, name: c.names[i], dtype: e.dtype, typed: e.typed, shaped: e.shaped}
	if c.encodings[i] == "bytes" {
		t.dtype, t.bytes = DTypeUnknown, true
		return t, e.missing == ""
	}
	return t, e.missing == "" && strings.HasPrefix(c.encodings[i], "ndarray") && (e.typed || e.dtype.Integer())
}

// encoding reads the encoding of column i: bytes and text of variable size, numbers, and ndarray, ndarray:dtype or
// ndarray:dtype:d0,d1. Images and JSON are bytes here, as they are stored.
func (c *mdsColumns) encoding(i int) (e mdsEncoding) {
	kind, rest, more := strings.Cut(c.encodings[i], ":")
	size := int64(-1)
	switch kind {
	case "bytes", "str", "json", "jpeg", "png":
		e.form = bytesForm()
	case "int":
		e.dtype, size = I64, 8
	case "ndarray":
		name, dims, static := strings.Cut(rest, ":")
		if e.typed, e.shaped = !more, !static; e.typed {
			break
		}
		if e.dtype = mdsType(name); static {
			size = e.static(dims)
		}
	default:
		e.dtype = mdsType(kind)
		size = int64(e.dtype.Size())
	}
	switch {
	case e.dtype == DTypeUnknown && !e.typed:
		e.missing = fmt.Sprintf("its encoding %q is none whose values lie in the file as they are", c.encodings[i])
	case size != c.sizes[i]:
		e.missing = fmt.Sprintf("its size in the index contradicts its encoding %q", c.encodings[i])
	}
	return e
}

// static reads the dimensions of a fixed shape, and returns the bytes of such an array, 0 for none.
func (e *mdsEncoding) static(dims string) int64 {
	size := int64(e.dtype.Size())
	for dim := range strings.SplitSeq(dims, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(dim), 10, 64)
		if err != nil || size == 0 || n < 1 || n > math.MaxUint32/size {
			return 0
		}
		size *= n
		e.shape = append(e.shape, n)
	}
	return size
}

// mdsType returns the type of numbers that NumPy calls name.
func mdsType(name string) DType {
	for d := U8; d <= F64; d++ {
		if d != BF16 && d.Long() == name {
			return d
		}
	}
	return DTypeUnknown
}

// mdsTypeCode returns the type of the code that precedes an array of no fixed type (mds/encodings.py, NDArray). A code
// is the bits of an element, plus 1 for signed integers and 2 for floats. known is false for a code that the writer
// does not know.
func mdsTypeCode(code byte) (d DType, known bool) {
	const kinds = "uif"
	kind := int(code % 8)
	if kind >= len(kinds) {
		return DTypeUnknown, false
	}
	d = shortDType(kinds[kind:kind+1] + strconv.Itoa(int(code)-kind))
	return d, d != DTypeUnknown
}

// variable returns how many of the first n columns are of variable size.
func (c *mdsColumns) variable(n int) int {
	count := 0
	for _, size := range c.sizes[:n] {
		if size < 0 {
			count++
		}
	}
	return count
}

// bySize reports whether the size of a sample alone tells where its tokens lie. No column of variable size may precede
// them. None may follow, unless their own size is fixed.
func (c *mdsColumns) bySize() bool {
	t := c.tokens.column
	return c.variable(t) == 0 && (c.sizes[t] >= 0 || c.variable(len(c.sizes)) == 1)
}

// same reports whether two shards have their samples laid out alike.
func (c *mdsColumns) same(o *mdsColumns) bool {
	return slices.Equal(c.names, o.names) && slices.Equal(c.encodings, o.encodings) && slices.Equal(c.sizes, o.sizes)
}
