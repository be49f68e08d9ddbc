package layout

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Fields of samples: a column of MDS, the members of one extension in archives. Each is shown as arrays over the
// samples of all shards, in order, in the directory fields. They are found when somebody looks there.

// field is the values of one field, in a shard or in a set.
type field struct {
	form
	name    string
	values  Body
	index   DocumentIndex // of the elements, by samples; may be nil where form tells it
	missing string        // why it is not shown, "" where it is
	nulls   bool          // it has no type, since all values are null
	costly  bool          // to read index takes decoding the values
	leave   func()        // gives its part of the volume's budget back; nil where it has none

	checks []func(ctx context.Context) error // of its shape in shards where that takes decoding the values
}

// form is the type of a field's values, and their shape: of each value, or of the rows of a ragged field.
type form struct {
	dtype  DType
	ragged bool
	shape  []int64
}

// bytesForm is the form of values of any number of bytes.
func bytesForm() form { return form{dtype: U8, ragged: true} }

// meet widens f to hold values of another form too. ok is false where the types differ.
func (f *form) meet(g form) (ok bool) {
	if f.ragged == g.ragged && slices.Equal(f.shape, g.shape) {
		return f.dtype == g.dtype
	}
	rows := f.rows()
	if !slices.Equal(rows, g.rows()) {
		rows = nil
	}
	f.ragged, f.shape = true, rows
	return f.dtype == g.dtype
}

// rows is the shape of the rows of a value.
func (f *form) rows() []int64 {
	if f.ragged || len(f.shape) == 0 {
		return f.shape
	}
	return f.shape[1:]
}

// elements returns how many a value of a fixed shape has. Shapes are checked when they are read.
func (f *form) elements() int64 {
	n := int64(1)
	for _, d := range f.shape {
		n *= d
	}
	return n
}

// fieldsOf is the fields of a shard or a set.
type fieldsOf struct {
	none    string // why a shard has none, "" where it has
	samples int64
	shards  []int64 // samples of the shards of a set
	fields  []*field
}

// maxFields bounds the fields of a set.
const maxFields = 1024

// hasFields reports whether the format describes fields.
func (s *Set) hasFields() bool {
	return s.noFields != "" || slices.ContainsFunc(s.Shards, func(h *Shard) bool { return h.findFields != nil })
}

// samplesOf resolves the set's fields, once.
func (s *Set) samplesOf(ctx context.Context) (*fieldsOf, error) {
	select {
	case s.resolving <- struct{}{}:
		defer func() { <-s.resolving }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.fields != nil {
		return s.fields, nil
	}
	if s.noFields != "" {
		return nil, absent("%s", s.noFields)
	}
	if s.Bad() == nil {
		if err := s.each(ctx, func(ctx context.Context, h *Shard) (err error) {
			if h.fields != nil {
				return nil
			}
			if h.fields, err = h.findFields(ctx, h); err == nil && h.Samples < 0 {
				h.Samples = h.fields.samples
			}
			if gone, ok := errors.AsType[*AbsentError](err); ok {
				h.fields, err = &fieldsOf{none: gone.Why}, nil
			}
			if _, broken := errors.AsType[*corrupt](err); err != nil && !broken {
				return &readError{err}
			}
			return err
		}, (*Shard).takeFields, nil); err != nil {
			return nil, err
		}
	}
	if bad := s.Bad(); bad != nil {
		s.leaveFields(nil)
		return nil, absent("shard %s is bad: %s", bad.Name, bad.Bad)
	}
	all, err := s.joinFields()
	if err != nil {
		s.leaveFields(nil)
		s.noFields = err.Error()
		return nil, absent("%s", s.noFields)
	}
	s.leaveFields(all.fields)
	s.fields = all
	return all, nil
}

// leaveFields forgets the fields of the shards. Parts that no field of the set needs any more give their places of the volume's budget back.
func (s *Set) leaveFields(of []*field) {
	needed := map[string]bool{}
	for _, f := range of {
		needed[f.name] = f.missing == "" && (f.ragged || len(f.checks) > 0 || f.values.decoded())
	}
	for _, h := range s.Shards {
		if h.fields == nil {
			continue
		}
		for _, f := range h.fields.fields {
			if f.leave != nil && !needed[f.name] {
				f.leave()
			}
		}
		h.fields = nil
	}
}

// joinFields makes the fields of the set of those of its shards. A field of a set is in any of its shards.
func (s *Set) joinFields() (*fieldsOf, error) {
	all, parts := &fieldsOf{}, map[string][]*field{} // by shard, nil where it has none
	for i, h := range s.Shards {
		if h.fields.none != "" {
			return nil, errors.New(h.fields.none)
		}
		if all.samples += h.fields.samples; all.samples > maxArrowRows {
			return nil, errors.New("the shards have more than 2^53 samples")
		}
		all.shards = append(all.shards, h.fields.samples)
		for _, f := range h.fields.fields {
			if parts[f.name] == nil {
				if len(all.fields) == maxFields {
					return nil, fmt.Errorf("the samples have more than %d fields", maxFields)
				}
				parts[f.name] = make([]*field, len(s.Shards))
				all.fields = append(all.fields, &field{name: f.name})
			}
			if former := parts[f.name][i]; former != nil {
				if former.leave != nil {
					former.leave()
				}
				f.missing, f.nulls = "several fields have its name", false
			}
			parts[f.name][i] = f
		}
	}
	for _, f := range all.fields {
		f.missing = s.joinField(f, parts[f.name])
	}
	return all, nil
}

// joinField joins the parts of a field, or says why it cannot be shown.
func (s *Set) joinField(f *field, parts []*field) (missing string) {
	known := false // by a sample
	nulls := false // all values of a shard
	missing = "all of its values are null"
	lacking := "" // a shard without it
	for i, p := range parts {
		h := s.Shards[i]
		switch {
		case p == nil && h.fields.samples > 0:
			lacking = cmp.Or(lacking, h.Name)
		case p == nil:
		case p.nulls:
			nulls, parts[i] = nulls || h.fields.samples > 0, nil
		case p.missing != "" && h.fields.samples > 0:
			return p.missing
		case p.missing != "":
			missing, parts[i] = p.missing, nil
		case !known:
			f.form, known = p.form, h.fields.samples > 0
		case h.fields.samples > 0 && !f.meet(p.form):
			return fmt.Sprintf("shard %s has values of %s, those before it of %s", h.Name, p.dtype.Long(), f.dtype.Long())
		}
	}
	if f.dtype == DTypeUnknown {
		return missing
	}
	if nulls {
		f.meet(form{f.dtype, true, f.rows()})
	}
	switch {
	case f.dtype.NumPy() == "":
		return fmt.Sprintf("NumPy has no type for %s", f.dtype.Long())
	case lacking != "" && !f.ragged:
		return fmt.Sprintf("the samples of shard %s have no such field", lacking)
	}
	indexes, elements := make([]DocumentIndex, len(parts)), make([]int64, len(parts))
	for i, p := range parts {
		samples := s.Shards[i].fields.samples
		if p == nil {
			indexes[i] = regularDocuments{wholeDocuments{samples}, 0}
			continue
		}
		if indexes[i] = p.index; p.index == nil {
			indexes[i] = regularDocuments{wholeDocuments{samples}, p.elements()}
		}
		elements[i] = p.values.Size() / int64(f.dtype.Size())
		f.values.AddBody(&p.values)
		f.costly = f.costly || p.costly
		f.checks = append(f.checks, p.checks...)
		p.values = Body{} // there is one copy at a time
	}
	f.values.clip()
	if f.ragged {
		f.index = joinIndexes(indexes, elements)
	}
	return ""
}

// Fields describes the fields of the set's samples, nil where the format has none. It reads the indexes of all values, but those in
// compressed pages, and checks the shapes of arrays: a mistake in one is an error. An [*AbsentError] says why no field is shown.
func (s *Set) Fields(ctx context.Context) ([]Field, error) {
	if !s.hasFields() {
		return nil, nil
	}
	all, err := s.samplesOf(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range all.fields {
		if f.index != nil && !f.costly {
			if err := checkStarts(ctx, f.index); err != nil {
				return nil, err
			}
		}
		for _, check := range f.checks {
			if err := check(ctx); err != nil {
				return nil, err
			}
		}
	}
	_, about, err := s.fieldFilesOf(all)
	return about, err
}

// fieldFiles makes the files of the directory fields.
func (s *Set) fieldFiles(ctx context.Context) ([]*File, error) {
	all, err := s.samplesOf(ctx)
	if err != nil {
		return nil, err
	}
	files, _, err := s.fieldFilesOf(all)
	return files, err
}

func (s *Set) fieldFilesOf(all *fieldsOf) ([]*File, []Field, error) {
	about := fieldsJSON{Samples: all.samples, Fields: make([]Field, 0, len(all.fields)), Shards: make([]samplesJSON, 0, len(s.Shards))}
	for i, h := range s.Shards {
		about.Shards = append(about.Shards, samplesJSON{h.Name, all.shards[i]})
	}
	var files []*File
	taken := map[string]bool{}
	for _, f := range all.fields {
		j := Field{Name: f.name, Shape: []int64{}, Missing: f.missing}
		if f.missing == "" {
			j.Missing = s.addField(&files, f, all.samples, taken, &j)
		}
		about.Fields = append(about.Fields, j)
	}
	text, err := json.Marshal(about)
	if err != nil {
		return nil, nil, err
	}
	var b Body
	b.addWhole(Inline(append(text, '\n')))
	return append(files, s.named(fieldsIndex, b, DTypeUnknown, -1)), about.Fields, nil
}

// fieldsIndex is the name of the file that lists the fields.
const fieldsIndex = "fields.json"

type fieldsJSON struct {
	Samples int64         `json:"samples"`
	Fields  []Field       `json:"fields"`
	Shards  []samplesJSON `json:"shards"`
}

type samplesJSON struct {
	Name    string `json:"name"`
	Samples int64  `json:"samples"`
}

// Field describes a field of a set's samples. Of one that is not shown, only Name and Missing are set.
type Field struct {
	Name    string  `json:"name"`
	File    string  `json:"file,omitempty"`  // the name in the names of its files
	Kind    string  `json:"kind,omitempty"`  // dense or ragged
	DType   string  `json:"dtype,omitempty"` // as NumPy names it
	Shape   []int64 `json:"shape"`           // of a value, or of the rows of a ragged field
	Bytes   int64   `json:"bytes"`
	Missing string  `json:"missing,omitempty"` // why it is not shown
}

// addField adds the files of a field and describes it, or says why it cannot be shown.
func (s *Set) addField(files *[]*File, f *field, samples int64, taken map[string]bool, j *Field) (missing string) {
	name, err := tensorFileName(f.name)
	if err != nil {
		return err.Error()
	}
	item := int64(f.dtype.Size())
	values, shape := name+".npy", append([]int64{samples}, f.shape...)
	if f.ragged {
		values, shape = name+".values.npy", []int64{f.values.Size() / item}
	}
	offsets := name + ".offsets.npy"
	if taken[values] || f.ragged && taken[offsets] {
		return "files of another field have its name"
	}
	if !numpyShape(shape, item) {
		return fmt.Sprintf("NumPy makes no array of the shape %s", shapeText(shape))
	}
	taken[values], taken[offsets] = true, taken[offsets] || f.ragged
	var b Body
	b.addWhole(Inline(NPYHeader(f.dtype, shape...)))
	b.AddBody(&f.values)
	*files = append(*files, s.named(values, b, f.dtype, f.values.Size()/item))
	kind := "dense"
	if f.ragged {
		kind = "ragged"
		var b Body
		b.addWhole(Inline(NPYHeader(I64, samples+1)))
		b.addWhole(computedInt64(samples+1, func(ctx context.Context, part []int64, first int64) error { return f.index.Starts(ctx, part, first) }))
		*files = append(*files, s.named(offsets, b, I64, samples+1))
	}
	*j = Field{f.name, name, kind, f.dtype.Long(), append([]int64{}, f.shape...), f.values.Size(), ""}
	return ""
}

func (s *Set) named(name string, b Body, dtype DType, elements int64) *File {
	f := s.file(b, dtype, elements)
	f.Name = name
	return f
}
