package layout

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
)

// mdsReader finds the values of the samples of one shard.
type mdsReader struct {
	ctx        context.Context
	columns    *mdsColumns
	object     *Object
	variable   int64 // columns of variable size
	ahead      int64 // bytes that are read at once
	trust      bool  // that the size of a sample tells that of its only column of variable size
	at, length []int64
	window     []byte
	begin      int64 // of window
}

func (m *mdsShard) reader(ctx context.Context, o *Object) *mdsReader {
	n := len(m.columns.sizes)
	r := &mdsReader{ctx: ctx, columns: m.columns, object: o, variable: int64(m.columns.variable(n)), at: make([]int64, n), length: make([]int64, n)}
	if m.samples > 0 && o.Size/m.samples < 16<<10 { // the next samples are near
		r.ahead = windowFollowing
	}
	return r
}

// read returns n bytes at off, which are valid until the next call.
func (r *mdsReader) read(off, n int64) (raw []byte, err error) {
	if off < r.begin || off+n > r.begin+int64(len(r.window)) {
		r.window, err = readFull(r.ctx, r.object, off, max(n, min(r.ahead, r.object.Size-off)))
		if r.begin = off; err != nil {
			return nil, err
		}
	}
	return r.window[off-r.begin:][:n], nil
}

// sample finds where the values of sample i lie in the file, whose bytes are [begin, end) there.
func (r *mdsReader) sample(i, begin, end int64) error {
	size, before := end-begin, 4*r.variable
	if size < before {
		return corruptf(r.object, begin, "sample %d has %d bytes, the sizes of its columns take %d", i, size, before)
	}
	var sizes []byte
	if !r.trust || r.variable > 1 {
		var err error
		if sizes, err = r.read(begin, before); err != nil {
			return err
		}
	}
	at := begin + before
	for k, n := range r.columns.sizes {
		switch {
		case n >= 0:
		case sizes == nil:
			if n = size - before - r.columns.fixed(); n < 0 {
				n = 0 // it is told below
			}
		default:
			n = int64(binary.LittleEndian.Uint32(sizes))
			sizes = sizes[4:]
		}
		r.at[k], r.length[k] = at, n
		at += n
	}
	if at != end {
		return corruptf(r.object, begin, "sample %d has %d bytes, its columns take %d", i, size, at-begin)
	}
	return nil
}

// dims32 reads the beginning of an array of sample i: u32 type, u32 number of dimensions, and the dimensions. LitData
// writes so (streaming/serializers.py, TensorSerializer and NumpySerializer).
func (r *mdsReader) dims32(i, off, length int64, e mdsEncoding) (a mdsArrayHead, err error) {
	bad := func() error { return corruptf(r.object, off, "the array of sample %d is cut short, or no array", i) }
	const most = 32 // dimensions that NumPy has
	head, err := r.read(off, min(length, 8+4*most))
	if err != nil {
		return a, err
	}
	if len(head) < 8 {
		return a, bad()
	}
	order := e.order
	if head[0] != 0 { // no code has a high byte: earlier versions wrote tensors in the order of the machine
		order = binary.LittleEndian
	}
	a.dtype = litdataType(e.codes, int(order.Uint32(head)))
	dims := int64(order.Uint32(head[4:]))
	if a.skip = 8 + 4*dims; dims > most || int64(len(head)) < a.skip || a.dtype == DTypeUnknown {
		return a, bad()
	}
	count := int64(a.dtype.Size())
	for k := range dims {
		n := int64(order.Uint32(head[8+4*k:]))
		product, fits := multiply(count, n)
		if !fits {
			return a, bad()
		}
		count = product
		a.shape = append(a.shape, n)
	}
	if count != length-a.skip {
		return a, corruptf(r.object, off, "the array of sample %d has the shape %s of %s, %d bytes follow", i, shapeText(a.shape), a.dtype, length-a.skip)
	}
	return a, nil
}

// mdsArrayHead is the beginning of an array: its type and shape, and the bytes before its values.
type mdsArrayHead struct {
	form
	skip int64
}

// array reads the beginning of the array of sample i, which takes length bytes at off. The dimensions are stored in as
// few bytes as they take.
func (r *mdsReader) array(i, off, length int64, e mdsEncoding) (a mdsArrayHead, err error) {
	const most = 1 + 1 + 63*8
	a.form = e.form
	head, err := r.read(off, min(length, most))
	if err != nil {
		return a, err
	}
	short := func() error { return corruptf(r.object, off, "the array of sample %d is cut short", i) }
	if e.typed {
		if len(head) == 0 {
			return a, short()
		}
		dtype, known := mdsTypeCode(head[0])
		if a.dtype = dtype; !known {
			return a, corruptf(r.object, off, "the array of sample %d has the type code %d, which no writer knows", i, head[0])
		}
		a.skip = 1
	}
	if int64(len(head)) <= a.skip {
		return a, short()
	}
	dims, width := int64(head[a.skip]>>2), int64(1)<<(head[a.skip]&3)
	a.skip++
	head = head[a.skip:]
	if int64(len(head)) < dims*width {
		return a, short()
	}
	a.skip += dims * width
	values, item := length-a.skip, int64(a.dtype.Size())
	count, fits, largest := int64(1), dims > 0, uint64(0)
	for k := range dims {
		var raw [8]byte
		copy(raw[:], head[k*width:(k+1)*width])
		n := binary.LittleEndian.Uint64(raw[:])
		largest = max(largest, n)
		if fits = fits && n <= math.MaxInt64; fits {
			count, fits = multiply(count, int64(n))
		}
		a.shape = append(a.shape, int64(n))
	}
	least := int64(1)
	for least < 8 && largest>>(8*least) != 0 {
		least *= 2
	}
	if !fits || values%item != 0 || count != values/item || width != least {
		return a, corruptf(r.object, off, "the array of sample %d counts %d elements in %d bytes, %d bytes of %s follow", i, count, width, values, a.dtype)
	}
	return a, nil
}

// fixed returns the bytes of the columns of fixed size.
func (c *mdsColumns) fixed() int64 {
	total := int64(0)
	for _, n := range c.sizes {
		total += max(n, 0)
	}
	return total
}

// findFields finds the values of all columns. It reads the beginning of each sample that has several columns of variable
// size, and of each array that has its shape before it.
func (m *mdsShard) findFields(ctx context.Context, s *Shard) (*fieldsOf, error) {
	encodings := make([]mdsEncoding, len(m.columns.names))
	for k := range encodings {
		encodings[k] = m.columns.encoding(k)
	}
	return m.findEncoded(ctx, s, encodings)
}

func (m *mdsShard) findEncoded(ctx context.Context, s *Shard, encodings []mdsEncoding) (*fieldsOf, error) {
	table, err := m.table(ctx, s.Objects[0])
	if err != nil {
		return nil, err
	}
	r := m.reader(ctx, table.object)
	c := m.columns
	out := &fieldsOf{samples: m.samples}
	parts := make([]fieldPieces, len(c.names))
	for k, name := range c.names {
		f := &field{name: name, form: encodings[k].form, missing: encodings[k].missing}
		out.fields = append(out.fields, f)
		parts[k] = fieldPieces{object: table.object, item: int64(f.dtype.Size()), left: m.fields, what: "the values of the field"}
	}
	err = table.walk(ctx, func(i, begin, end int64) error {
		if err := r.sample(i, begin, end); err != nil {
			return err
		}
		r.trust = true
		for k, f := range out.fields {
			if f.missing != "" {
				continue
			}
			if err := f.take(r.value(i, k, f, &parts[k], &encodings[k])); err != nil {
				return err
			}
		}
		return nil
	})
	for k, f := range out.fields {
		if err != nil {
			parts[k].giveBack()
			continue
		}
		err = f.finish(&parts[k])
	}
	return out, err
}

// value adds the value of column k in sample i, which was found, to its field.
func (r *mdsReader) value(i int64, k int, f *field, p *fieldPieces, e *mdsEncoding) error {
	at, length := r.at[k], r.length[k]
	switch {
	case e.size > 0 && length != e.size || !e.shaped && length%p.item != 0:
		return corruptf(r.object, at, "the value of %q in sample %d has %d bytes, which is no %s", f.name, i, length, e.dtype)
	case e.shaped:
		head := r.array
		if e.order != nil {
			head = r.dims32
		}
		a, err := head(i, at, length, *e)
		if err != nil {
			return err
		}
		at, length = at+a.skip, length-a.skip
		if i == 0 {
			f.form, p.item = a.form, int64(a.dtype.Size())
		} else if !f.meet(a.form) {
			return absent("sample %d of shard %s holds %s, those before it %s", i, r.object.Name, a.dtype.Long(), f.dtype.Long())
		}
	}
	return p.add(at, length)
}

// take makes an [*AbsentError] the reason why a field is missing, and returns other errors.
func (f *field) take(err error) error {
	if gone, ok := errors.AsType[*AbsentError](err); ok {
		f.missing = gone.Why
		return nil
	}
	return err
}

// finish gives a field its pieces.
func (f *field) finish(p *fieldPieces) error {
	if f.missing == "" {
		if err := f.take(p.flush()); err != nil {
			return err
		}
	}
	if f.missing != "" {
		p.giveBack()
		return nil
	}
	f.values, f.index = p.data, p.index.done()
	f.values.clip()
	return nil
}

// mdsEncoding is how a column's values are stored.
type mdsEncoding struct {
	form
	// typed and shaped tell which bytes precede an array's values: u8 type, then u8 (dimensions << 2 | log2 of the bytes
	// of one) and the dimensions.
	typed, shaped bool
	missing       string // why its values are no field

	// Of LitData: the bytes of numbers, which it stores with their size; the order of the u32s before an array, and the
	// kind of its type.
	size  int64
	order binary.ByteOrder
	codes string
}
