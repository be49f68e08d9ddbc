package layout

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// npyArray is the header of a .npy file (numpy, numpy/lib/format.py): magic, u8 major, u8 minor, the dictionary's
// length, the dictionary. The length is u16 in version 1, u32 in 2 and 3. The data follows.
type npyArray struct {
	descr   string // as written; "" for structured types
	dtype   DType  // of little-endian numbers; DTypeUnknown for all else
	item    int64  // bytes of an element, -1 where the header does not tell (objects, structures)
	fortran bool
	shape   []int64
	count   int64 // elements
	data    int64 // where the data begins, bytes
}

// maxNPYHeader is the longest dictionary that NumPy reads without being told to trust the file.
const maxNPYHeader = 10000

// npyProbe accepts by the magic alone, so that a damaged header is reported and not taken for tokens.
func npyProbe(_ *Object, head []byte) any {
	if !bytes.HasPrefix(head, []byte(npyMagic)) {
		return nil
	}
	return struct{}{}
}

// npyKey tells which arrays of a split are one stream: those that NumPy could concatenate.
type npyKey struct {
	dtype    DType
	row      string // the shape without its first dimension
	noTokens string
}

type npyGroup struct {
	npyKey
	shards []*Shard
	bytes  int64
}

// npyAssemble makes a set of each split, element type and row shape.
func npyAssemble(ctx context.Context, d *directory, members []member) {
	for split, group := range bySplit(members) {
		for _, g := range npyGroups(ctx, d, group) {
			set := d.add(split, g.dtype, g.shards)
			set.NoTokens = g.noTokens
			set.NoDocuments = "the format does not say where documents begin"
			if g.row != "" {
				set.Notes = append(set.Notes, "arrays of rows "+g.row+": each row is a sample")
			}
		}
	}
}

// npyGroups sorts the arrays of one split into streams. The largest comes first, since it gets the directory's plain
// name for its views: arrays beside tokens (document starts, lengths) are smaller. It also gets the arrays whose header
// cannot be read: a stream without them could be cut short in silence.
func npyGroups(ctx context.Context, d *directory, members []member) []*npyGroup {
	byKey := map[npyKey]*npyGroup{}
	var groups []*npyGroup
	var broken []*Shard
	for _, m := range members {
		a, err := readNPYHeader(ctx, m.object)
		if err != nil {
			s := newShard(m.object)
			d.volume.bad(s, err)
			broken = append(broken, s)
			continue
		}
		key, shard := npyShard(d, m.object, a)
		g := byKey[key]
		if g == nil {
			g = &npyGroup{npyKey: key}
			byKey[key] = g
			groups = append(groups, g)
		}
		g.shards = append(g.shards, shard)
		g.bytes += m.object.Size
	}
	slices.SortStableFunc(groups, func(a, b *npyGroup) int {
		if tokens := (a.noTokens == ""); tokens != (b.noTokens == "") {
			if tokens {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.bytes, a.bytes)
	})
	if len(broken) > 0 && len(groups) == 0 {
		groups = append(groups, &npyGroup{npyKey: npyKey{noTokens: "the header of no array can be read"}})
	}
	if len(broken) > 0 {
		groups[0].shards = append(groups[0].shards, broken...)
	}
	return groups
}

// npyShard makes a shard of one array and checks the header against the object's size.
func npyShard(d *directory, o *Object, a *npyArray) (npyKey, *Shard) {
	s := newShard(o)
	key := npyKey{dtype: a.dtype, noTokens: a.noTokens()}
	if len(a.shape) > 1 {
		key.row = shapeText(a.shape[1:])
		s.Samples = a.shape[0]
	}
	if a.item >= 0 {
		switch have, want := o.Size-a.data, a.count*a.item; {
		case have < want:
			d.volume.bad(s, corruptf(o, o.Size, "an array of shape %s takes %d bytes after the header, the file has %d", shapeText(a.shape), want, have))
			return key, s
		case have > want:
			d.problem(o, a.data+want, "%d bytes follow an array of shape %s, which NumPy does not read", have-want, shapeText(a.shape))
		}
	}
	name := cmp.Or(baseOf(d.path), "data")
	s.findFields = func(context.Context, *Shard) (*fieldsOf, error) { return a.fields(name, o), nil }
	if key.noTokens == "" {
		s.Tokens = a.count
		s.Data.Add(o, a.data, a.count*a.item)
	}
	return key, s
}

// fields is the array as one sample of one field, which has the name of the directory.
func (a *npyArray) fields(name string, o *Object) *fieldsOf {
	f := &field{name: name, form: form{dtype: a.dtype, shape: a.shape}}
	switch {
	case a.dtype == DTypeUnknown:
		f.missing = fmt.Sprintf("the elements (%q) of %s are none that are shown: little-endian numbers and bool are", a.descr, o.Name)
	case a.fortran && a.wide() > 1:
		f.missing = fmt.Sprintf("%s is in Fortran order: write it again in C order", o.Name)
	default:
		f.values.Add(o, a.data, a.count*a.item)
	}
	return &fieldsOf{samples: 1, fields: []*field{f}}
}

// wide returns how many dimensions are more than 1.
func (a *npyArray) wide() (wide int) {
	for _, n := range a.shape {
		wide += count(n > 1)
	}
	return wide
}

// noTokens says why the array is no stream of tokens, "" where it is one.
func (a *npyArray) noTokens() string {
	switch {
	case a.descr == "" || a.item < 0:
		return "the elements are Python objects or structures"
	case strings.HasPrefix(a.descr, ">"):
		return fmt.Sprintf("the elements (%q) are big-endian: write the array again in the order of this machine", a.descr)
	case !a.dtype.Integer():
		return fmt.Sprintf("the elements (%q) are no integers", a.descr)
	case len(a.shape) == 0:
		return "the array is a single number"
	case a.fortran && a.wide() > 1:
		return "the array is in Fortran order, its rows are not contiguous: write it again in C order"
	}
	return ""
}

func shapeText(shape []int64) string {
	dims := make([]string, len(shape))
	for i, n := range shape {
		dims[i] = strconv.FormatInt(n, 10)
	}
	if len(shape) == 1 {
		dims[0] += ","
	}
	return "(" + strings.Join(dims, ", ") + ")"
}

// readNPYHeader reads and checks the header of o. Errors name faults that NumPy refuses, too.
func readNPYHeader(ctx context.Context, o *Object) (*npyArray, error) {
	head, err := readFull(ctx, o, 0, min(o.Size, 12))
	if err != nil {
		return nil, err
	}
	start, length, err := npyDictionary(head)
	if err != nil {
		return nil, corruptf(o, min(o.Size, 6), "%v", err)
	}
	if start+length > o.Size {
		return nil, corruptf(o, 8, "the header takes %d bytes, the file has %d", start+length, o.Size)
	}
	text, err := readFull(ctx, o, start, length)
	if err != nil {
		return nil, err
	}
	a, err := parseNPYDictionary(text)
	if err != nil {
		return nil, corruptf(o, start, "%v", err)
	}
	a.data = start + length
	return a, nil
}

// npyDictionary finds the dictionary by the first 12 bytes of a file.
func npyDictionary(head []byte) (start, length int64, err error) {
	const magic = int64(len(npyMagic))
	if int64(len(head)) < magic+2+2 {
		return 0, 0, fmt.Errorf("the file ends in the header")
	}
	switch major, minor := head[magic], head[magic+1]; {
	case major == 1 && minor == 0:
		start, length = magic+2+2, int64(binary.LittleEndian.Uint16(head[8:]))
	case (major == 2 || major == 3) && minor == 0:
		if len(head) < 12 {
			return 0, 0, fmt.Errorf("the file ends in the header")
		}
		start, length = magic+2+4, int64(binary.LittleEndian.Uint32(head[8:]))
	default:
		return 0, 0, fmt.Errorf("the .npy version is %d.%d, NumPy knows 1.0, 2.0 and 3.0", major, minor)
	}
	if length > maxNPYHeader {
		return 0, 0, fmt.Errorf("the header's dictionary takes %d bytes, NumPy reads at most %d", length, maxNPYHeader)
	}
	return start, length, nil
}

// parseNPYDictionary reads the three keys of a header and works out sizes. It refuses shapes that overflow 64
// bits.
func parseNPYDictionary(text []byte) (*npyArray, error) {
	dict, err := npyEntries(string(text))
	if err != nil {
		return nil, fmt.Errorf("the header is no Python dictionary: %w", err)
	}
	if len(dict) != 3 {
		return nil, fmt.Errorf("the header has %d keys, descr, fortran_order and shape are expected", len(dict))
	}
	a := &npyArray{fortran: dict["fortran_order"] == "True", item: -1, count: 1}
	if !a.fortran && dict["fortran_order"] != "False" {
		return nil, fmt.Errorf("fortran_order is missing or neither True nor False")
	}
	if a.shape, err = npyShape(dict["shape"]); err != nil {
		return nil, err
	}
	switch descr := dict["descr"]; {
	case strings.HasPrefix(descr, "'"), strings.HasPrefix(descr, `"`):
		a.descr = descr[1 : len(descr)-1]
		a.dtype, a.item, err = npyType(a.descr)
	case strings.HasPrefix(descr, "["), strings.HasPrefix(descr, "("): // structured, its size stays unknown
	default:
		err = fmt.Errorf("descr is missing or no type")
	}
	if err != nil {
		return nil, err
	}
	return a, a.size()
}

// npyEntries reads a dictionary as Python's repr writes it, of keys without colons. Values stay as they are written. A list describes a
// structure, and goes up to the last bracket, since no other value has one.
func npyEntries(text string) (map[string]string, error) {
	dict := map[string]string{}
	rest, ok := strings.CutPrefix(strings.TrimSpace(text), "{")
	for rest = strings.TrimSpace(rest); ok && rest != "}"; rest = strings.TrimSpace(rest) {
		key, value, _ := strings.Cut(rest, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if len(key) < 2 || key[0] != '\'' && key[0] != '"' || key[len(key)-1] != key[0] || value == "" {
			return nil, fmt.Errorf("a key in quotes and a value are expected at %.20q", rest)
		}
		var last int // byte of the value
		switch value[0] {
		case '\'', '"':
			last = 1 + strings.IndexByte(value[1:], value[0])
		case '(':
			last = strings.IndexByte(value, ')')
		case '[':
			last = strings.LastIndexByte(value, ']')
		default:
			last = strings.IndexAny(value, ",} ") - 1
		}
		if key = key[1 : len(key)-1]; last < 1 || dict[key] != "" {
			return nil, fmt.Errorf("the value of %q does not end, or the key is there twice", key)
		}
		dict[key] = value[:last+1]
		after := strings.TrimSpace(value[last+1:])
		if rest, ok = strings.CutPrefix(after, ","); !ok {
			rest, ok = after, after == "}"
		}
	}
	if !ok {
		return nil, fmt.Errorf("'{', and entries that commas divide, are expected at %.20q", cmp.Or(rest, text))
	}
	return dict, nil
}

// npyShape reads a tuple of dimensions. Python 2 wrote an L after long ones, which NumPy still takes.
func npyShape(tuple string) (shape []int64, err error) {
	inside, isTuple := strings.CutPrefix(strings.TrimSuffix(tuple, ")"), "(")
	if inside = strings.TrimSpace(inside); !isTuple || inside != "" && !strings.Contains(inside, ",") {
		return nil, fmt.Errorf("shape is missing or no tuple")
	}
	for dimension := range strings.SplitSeq(strings.TrimSuffix(inside, ","), ",") {
		if inside == "" {
			break
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(dimension), "L"), 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return nil, fmt.Errorf("the shape holds %s, which is no integer of 64 bits", dimension)
		case err != nil || n < 0:
			return nil, fmt.Errorf("the shape holds %q, dimensions from 0 are expected", dimension)
		}
		shape = append(shape, n)
	}
	return shape, nil
}

// size multiplies the shape out.
func (a *npyArray) size() error {
	if slices.Contains(a.shape, 0) {
		a.count = 0
		return nil
	}
	limit := int64(math.MaxInt64) / max(a.item, 1)
	for _, n := range a.shape {
		if n > limit/a.count {
			return fmt.Errorf("an array of shape %s and type %q overflows 64 bits", shapeText(a.shape), a.descr)
		}
		a.count *= n
	}
	return nil
}

// npyType returns the element type of a descr such as "<u2", and its bytes: -1 for Python objects.
func npyType(descr string) (DType, int64, error) {
	for d := U8; d.Size() > 0; d++ {
		if d.NumPy() == descr && descr != "" {
			return d, int64(d.Size()), nil
		}
	}
	bad := fmt.Errorf("descr %q is no NumPy type", descr)
	if len(descr) < 2 || !strings.ContainsRune("<>|=", rune(descr[0])) {
		return DTypeUnknown, 0, bad
	}
	kind, digits := descr[1], descr[2:]
	if unit := strings.IndexByte(digits, '['); unit >= 0 && (kind == 'M' || kind == 'm') {
		digits = digits[:unit]
	}
	if kind == 'O' {
		return DTypeUnknown, -1, nil
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n < 0 || !strings.ContainsRune("biufcmMSUV", rune(kind)) {
		return DTypeUnknown, 0, bad
	}
	if kind == 'U' { // characters of 4 bytes
		n *= 4
	}
	return DTypeUnknown, n, nil
}
