package layout

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// An item of LitData is a u32 for each leaf, the bytes of its value, and then the values. That is how MDS stores a sample
// whose columns are all of variable size. Source: Lightning-AI/litData, streaming/writer.py and serializers.py.

// litdataFields is the fields of all chunks of an index.
type litdataFields struct {
	columns   *mdsColumns
	encodings []mdsEncoding
}

// fields describes the leaves of the items.
func (c *litdataConfig) fields() *litdataFields {
	f := &litdataFields{columns: &mdsColumns{names: c.leaves()}}
	for _, format := range c.DataFormat {
		f.columns.sizes = append(f.columns.sizes, -1)
		f.encodings = append(f.encodings, litdataEncoding(format))
	}
	return f
}

// litdataEncoding is how the values of a leaf are stored.
func litdataEncoding(format string) (e mdsEncoding) {
	kind, code, _ := strings.Cut(format, ":")
	switch kind {
	case "str", "text", "bytes", "json", "jpeg", "image", "video", "audio", "pdf", "file":
		e.form = bytesForm()
	case "int":
		e.dtype, e.size = I64, 8
	case "float":
		e.dtype, e.size = F64, 8
	case "bool":
		e.dtype, e.size = Bool, 1
	case "tensor":
		e.shaped, e.order, e.codes = true, binary.BigEndian, "no_header_tensor"
	case "numpy":
		e.shaped, e.order, e.codes = true, binary.LittleEndian, "no_header_numpy"
	case "no_header_tensor", "no_header_numpy":
		if n, err := strconv.Atoi(code); err == nil {
			e.form = form{dtype: litdataType(kind, n), ragged: true}
		}
	}
	if e.dtype == DTypeUnknown && !e.shaped {
		e.missing = fmt.Sprintf("its format %q is none whose values lie in the file as they are", format)
	}
	return e
}

// leaves names the leaves of an item by their path in its tree: keys and positions with points between. The item
// itself is called data.
func (c *litdataConfig) leaves() []string {
	var names []string
	var spec [2]json.RawMessage // the version of the text, and the tree
	if json.Unmarshal([]byte(c.DataSpec), &spec) == nil {
		names = litdataLeaves(spec[1], "", 0)
	}
	if len(names) == len(c.DataFormat) {
		return names
	}
	names = nil
	for i := range c.DataFormat {
		names = append(names, strconv.Itoa(i))
	}
	return names
}

// litdataLeaves walks a tree as torch.utils._pytree writes it.
func litdataLeaves(text json.RawMessage, at string, depth int) []string {
	var node struct {
		Type     *string           `json:"type"`
		Context  *string           `json:"context"`
		Children []json.RawMessage `json:"children_spec"`
	}
	if json.Unmarshal(text, &node) != nil || depth > maxMemberDepth || len(at) > maxMemberPath {
		return nil
	}
	if node.Type == nil {
		if at == "" {
			at = "data"
		}
		return []string{at}
	}
	var keys []any
	if node.Context != nil {
		_ = json.Unmarshal([]byte(*node.Context), &keys) // of lists it is null
	}
	var names []string
	for i, child := range node.Children {
		if len(names) > maxFields {
			return nil
		}
		name := strconv.Itoa(i)
		if len(keys) == len(node.Children) {
			name = fmt.Sprint(keys[i])
		}
		if at != "" {
			name = at + "." + name
		}
		names = append(names, litdataLeaves(child, name, depth+1)...)
	}
	return names
}

// find finds the fields of one chunk. Items that are tokens alone have no sizes.
func (f *litdataFields) find(ctx context.Context, s *Shard, m *mdsShard, tokens DType) (*fieldsOf, error) {
	if tokens == DTypeUnknown {
		table, err := readOffsetTable(ctx, s.Objects[0], m.samples)
		if err != nil {
			return nil, err
		}
		if last, err := table.at(ctx, m.samples); err != nil || m.samples > 0 && last == table.end() && last < table.object.Size {
			if err == nil {
				err = absent("the items of %s are rows in Arrow's format", s.Name)
			}
			return nil, err
		}
		m.columns = f.columns
		return m.findEncoded(ctx, s, f.encodings)
	}
	if s.resolve != nil {
		if err := s.resolve(ctx, s); err != nil {
			return nil, err
		}
	}
	name := "data"
	if len(f.columns.names) == 1 {
		name = f.columns.names[0]
	}
	return &fieldsOf{samples: m.samples, fields: []*field{{name: name, form: form{dtype: tokens, ragged: true}, values: s.Data, index: s.Index}}}, nil
}
