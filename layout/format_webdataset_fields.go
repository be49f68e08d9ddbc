package layout

import (
	"archive/tar"
	"context"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
)

// sampleKey divides the name of a member: consecutive members of one key are a sample, and the extension is the field.
// The key ends at the first point of the base name. Members without one, and those below __like_this__, belong to no
// sample. Source: webdataset/webdataset, src/webdataset/tariterators.py (base_plus_ext, tar_file_iterator).
func sampleKey(name string) (key, extension string, ok bool) {
	if first, _, _ := strings.Cut(name, "/"); len(first) >= 4 && strings.HasPrefix(first, "__") && strings.HasSuffix(first, "__") {
		return "", "", false
	}
	if strings.Contains(name, "\n") { // which no point of the expression matches
		if m := regexp.MustCompile(`^((?:.*/|)[^.]+)[.]([^/]*)$`).FindStringSubmatch(name); m != nil {
			return m[1], m[2], true
		}
		return "", "", false
	}
	dir := strings.LastIndexByte(name, '/')
	point := strings.IndexByte(name[dir+1:], '.')
	switch {
	case point < 0:
		return "", "", false
	case point == 0: // the expression then takes the directory for the base name
		if dir < 0 || strings.Contains(baseOf(name[:dir]), ".") {
			return "", "", false
		}
	}
	point += dir + 1
	return name[:point], name[point+1:], true
}

// ownFields are names that webdataset gives to other things in a sample.
func ownFields() []string { return []string{"__key__", "__url__", "__local_path__", "__bad__"} }

// tarFields puts together the fields of one archive.
type tarFields struct {
	object  *Object
	left    *atomic.Int64
	key     string // of the last sample
	samples int64
	order   []*tarField
	byName  map[string]*tarField
}

type tarField struct {
	field
	pieces fieldPieces
}

// findTarFields finds the samples of an archive. One that webdataset itself refuses has no fields.
func findTarFields(ctx context.Context, o *Object, left *atomic.Int64) (*fieldsOf, error) {
	t := &tarFields{object: o, left: left, byName: map[string]*tarField{}}
	_, err := walkTar(ctx, o, t.add)
	out := &fieldsOf{samples: t.samples}
	for _, f := range t.order {
		if err != nil {
			f.pieces.giveBack()
			continue
		}
		f.pieces.addEmpty(t.samples - f.pieces.index.documents)
		err = f.finish(&f.pieces)
		out.fields = append(out.fields, &f.field)
	}
	return out, err
}

// add takes a header, whose member's bytes begin at offset.
func (t *tarFields) add(h *tar.Header, offset int64) error {
	if contested(h) {
		return absent("%s: %s", t.object.Name, whyContested)
	}
	key, extension, ok := sampleKey(h.Name)
	if !ok || !isRegular(h) {
		return nil
	}
	if t.samples == 0 || key != t.key {
		t.samples++
		t.key = key
	}
	name := strings.ToLower(extension)
	f := t.byName[name]
	if f == nil {
		switch {
		case len(t.order) == maxFields:
			return absent("the samples of %s have more than %d fields", t.object.Name, maxFields)
		case len(name) > maxMemberFolder || slices.Contains(ownFields(), name):
			return absent("%s: a sample cannot have a field %.80q", t.object.Name, name)
		}
		f = &tarField{field{name: name, form: bytesForm()}, fieldPieces{object: t.object, item: 1, left: t.left, what: "the values of the field"}}
		t.byName[name] = f
		t.order = append(t.order, f)
	}
	switch {
	case f.missing != "":
		return nil
	case f.pieces.index.documents == t.samples:
		return absent("%s: sample %.80q has the field %q twice, which webdataset refuses", t.object.Name, key, name)
	case isSparse(h):
		f.missing = whySparse
		return nil
	}
	f.pieces.addEmpty(t.samples - 1 - f.pieces.index.documents)
	return f.take(f.pieces.add(offset, h.Size))
}
