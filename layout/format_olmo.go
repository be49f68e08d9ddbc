package layout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
)

const olmoSidecar = ".csv.gz"

// maxListedDocuments bounds the documents of one set whose list must be held in memory, 8 bytes each.
const maxListedDocuments = 8 << 20

func olmoProbe(o *Object, head []byte) any {
	if !strings.HasSuffix(o.Name, olmoSidecar) {
		return nil
	}
	if h, ok := readSidecarHead(head, o.Size); ok {
		return h
	}
	return nil
}

// olmoPart is a token file with its sidecar, which may be missing.
type olmoPart struct {
	data, sidecar *Object
	head          sidecarHead
}

func olmoAssemble(ctx context.Context, d *directory, members []member) {
	var parts, missing []member // the data, with an olmoPart
	for _, m := range members {
		part := olmoPart{sidecar: m.object, head: m.head.(sidecarHead)}
		stem := strings.TrimSuffix(baseOf(m.object.Name), olmoSidecar)
		o := d.sibling(stem + ".npy")
		if o == nil {
			o = d.sibling(stem + ".bin")
		}
		switch {
		case o == nil:
			missing = append(missing, member{m.object, part})
		case !d.isClaimed(o) && d.guessTokens(ctx, o).mayBeTokens():
			part.data = o
			parts = append(parts, member{o, part})
		}
	}
	if len(parts) == 0 {
		return // tables that only look like sidecars
	}
	parts = append(d.withoutSidecar(ctx, parts), missing...)
	slices.SortFunc(parts, func(a, b member) int { return ComparePaths(a.object.Name, b.object.Name) })
	for split, group := range bySplit(parts) {
		var shards []typedShard
		made := map[*Shard]olmoPart{}
		for _, m := range group {
			shard := m.head.(olmoPart).shard(ctx, d)
			shards, made[shard.shard] = append(shards, shard), m.head.(olmoPart)
		}
		for _, set := range d.addByType(split, shards) {
			if d.opt.DType == DTypeUnknown && !slices.ContainsFunc(set.Shards, func(h *Shard) bool { return made[h].sidecar != nil }) {
				set.guess()
			}
			listDocuments(set, made, maxListedDocuments)
		}
	}
}

// guessTokens returns the guess from the values at o's start. They were looked at already, unless only one format is
// tried.
func (d *directory) guessTokens(ctx context.Context, o *Object) tokenGuess {
	if guess, ok := d.probed[d.find(o.Name)].head.(tokenGuess); ok {
		return guess
	}
	if o.Whole {
		return tokenGuess{unseen: true}
	}
	head, err := readFull(ctx, o, 0, min(o.Size, headSize))
	if err != nil {
		return tokenGuess{}
	}
	return guessTokens(head, codes())
}

// withoutSidecar adds the files that belong to the parts by their names and have no sidecar, so that the stream does
// not lack them.
func (d *directory) withoutSidecar(ctx context.Context, parts []member) []member {
	families, have := map[string]bool{}, map[*Object]bool{}
	for _, m := range parts {
		families[labelOf(baseOf(m.object.Name)).alike], have[m.object] = true, true
	}
	first := 0
	if d.path != "" {
		first, _ = slices.BinarySearchFunc(d.volume.Objects, d.path+"/", func(o *Object, name string) int { return ComparePaths(o.Name, name) })
	}
	for i := first; i < len(d.volume.Objects); i++ {
		o := d.volume.Objects[i]
		if d.path != "" && !strings.HasPrefix(o.Name, d.path+"/") {
			break
		}
		if dirOf(o.Name) == d.path && families[labelOf(baseOf(o.Name)).alike] && !have[o] && !d.claimed[i] && d.guessTokens(ctx, o).mayBeTokens() {
			parts = append(parts, member{o, olmoPart{data: o}})
		}
	}
	return parts
}

// shard makes a shard of the part. Its documents are listed when it is resolved: see listDocuments.
func (p olmoPart) shard(ctx context.Context, d *directory) typedShard {
	if p.data == nil {
		h := newShard(p.sidecar)
		d.volume.bad(h, corruptf(p.sidecar, 0, "the tokens are missing: neither %s.npy nor .bin is there", strings.TrimSuffix(p.sidecar.Name, olmoSidecar)))
		return typedShard{h, DTypeUnknown}
	}
	h := newShard(p.data)
	if p.sidecar != nil {
		h.Objects = append(h.Objects, p.sidecar)
	}
	dtype, err := p.dtype(ctx, d)
	if err != nil {
		d.volume.bad(h, err)
		return typedShard{h, dtype}
	}
	if dtype != DTypeUnknown {
		h.Tokens = p.data.Size / int64(dtype.Size())
		h.Data.Add(p.data, 0, p.data.Size)
	} else { // nothing is there, and nothing is listed
		h.Tokens = 0
	}
	return typedShard{h, dtype}
}

// dtype returns the type of the tokens: the end of the last document tells it exactly. A long sidecar is not read for
// that as long as the values tell; resolving compares it with them.
func (p olmoPart) dtype(ctx context.Context, d *directory) (DType, error) {
	size, dtype, end := p.data.Size, d.opt.DType, p.head.end
	if dtype == DTypeUnknown {
		dtype = d.guessTokens(ctx, p.data).dtype
	}
	switch {
	case dtype != DTypeUnknown && (p.sidecar == nil || end < 0):
	case p.sidecar == nil && size == 0, p.sidecar != nil && end == 0 && size == 0:
		return DTypeUnknown, nil
	case p.sidecar == nil:
		return DTypeUnknown, corruptf(p.data, 0, "the values do not show whether they are tokens of 2 or of 4 bytes, and no %s lists documents: give their type by --dtype", olmoSidecar)
	default:
		if end < 0 {
			var err error
			if end, err = eachDocument(ctx, p.sidecar, size, func(int64) error { return nil }); err != nil {
				return DTypeUnknown, err
			}
		}
		exact := typeByEnd(end, size)
		if d.opt.DType != DTypeUnknown && d.opt.DType.Size() == exact.Size() {
			exact = d.opt.DType
		}
		if exact == DTypeUnknown || (dtype != DTypeUnknown && dtype != exact) {
			return dtype, corruptf(p.data, size, "the data has %d bytes%s, its last document ends at token %d", size, ofType(dtype), end)
		}
		dtype = exact
	}
	if size%int64(dtype.Size()) != 0 {
		return dtype, corruptf(p.data, size, "%d bytes are no whole number of %s", size, dtype)
	}
	return dtype, nil
}

func ofType(d DType) string {
	if d == DTypeUnknown {
		return ""
	}
	return " of " + d.String()
}

// typeByEnd returns the type of which end tokens make size bytes, DTypeUnknown for none.
func typeByEnd(end, size int64) DType {
	for _, d := range []DType{U16, U32} {
		if end > 0 && size%int64(d.Size()) == 0 && size/int64(d.Size()) == end {
			return d
		}
	}
	return DTypeUnknown
}

// listDocuments makes the shards of a set list their documents when they are resolved. Sidecars that are too long for
// their lists to fit into memory are only read to be checked.
func listDocuments(set *Set, parts map[*Shard]olmoPart, limit int64) {
	rows := int64(0)
	for _, h := range set.Shards {
		rows += parts[h].head.rows
	}
	if rows > 2*limit { // an estimate: resolving counts
		set.NoDocuments = fmt.Sprintf("the %s files list about %d documents, and no more than %d are held in memory: hbmfs pack can write them in a form that is read in place",
			olmoSidecar, rows, limit)
	}
	room := new(atomic.Int64)
	room.Store(limit)
	for _, h := range set.Shards {
		part := parts[h]
		switch {
		case h.Bad != "":
		case part.sidecar == nil:
			h.NoDocuments = "no " + olmoSidecar + " lists its documents"
		case set.NoDocuments != "":
			h.check = part.readOnly
		default:
			h.resolve = func(ctx context.Context, h *Shard) error { return part.list(ctx, h, room) }
		}
	}
}

// errFull ends the reading of a sidecar whose documents are too many to be held.
var errFull = errors.New("no room for more documents")

// list reads the sidecar into the shard's index. Documents are taken from room, which the shards of a set share.
func (p olmoPart) list(ctx context.Context, h *Shard, room *atomic.Int64) error {
	starts := make([]int64, 1, min(1<<16, p.head.rows+2))
	err := p.read(ctx, h, func(end int64) error {
		if room.Add(-1) < 0 {
			return errFull
		}
		starts = append(starts, end)
		return nil
	})
	switch {
	case errors.Is(err, errFull):
		h.NoDocuments = fmt.Sprintf("the %s files of the set list more documents than are held in memory (%d)", olmoSidecar, maxListedDocuments)
		h.check = p.readOnly
		return nil
	case err != nil:
		room.Add(int64(len(starts)) - 1)
		return err
	}
	h.Documents = int64(len(starts) - 1)
	h.Index = listedDocuments{wholeDocuments{h.Documents}, starts}
	return nil
}

// readOnly reads the sidecar for the checks of it.
func (p olmoPart) readOnly(ctx context.Context, h *Shard) error {
	return p.read(ctx, h, func(int64) error { return nil })
}

// read reads all of the sidecar and wants its last document to end where the data ends.
func (p olmoPart) read(ctx context.Context, h *Shard, visit func(end int64) error) error {
	last, err := eachDocument(ctx, p.sidecar, h.Tokens, visit)
	if err != nil {
		return err
	}
	if last == h.Tokens {
		return nil
	}
	hint := ""
	if other := typeByEnd(last, p.data.Size); other != DTypeUnknown {
		hint = fmt.Sprintf(": the tokens are rather %s, which --dtype %s says", other, other)
	}
	return corruptf(p.sidecar, 0, "the last document ends at token %d, the data has %d%s", last, h.Tokens, hint)
}
