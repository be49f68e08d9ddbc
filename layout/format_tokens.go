package layout

import (
	"context"
	"slices"
	"strings"
)

// tokensProbe looks at the values of files whose names may be those of token files. It accepts what it cannot judge
// as well: other files of the same family, or --dtype, may tell.
func tokensProbe(o *Object, head []byte) any {
	if !isTokenName(o.Name) {
		return nil
	}
	return guessTokens(head)
}

// isTokenName reports whether writers of headerless tokens use such a name.
func isTokenName(name string) bool {
	for _, suffix := range []string{".bin", ".npy", ".tokens", ".tok", ".u16", ".u32", ".uint16", ".uint32"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

func tokensAssemble(ctx context.Context, d *directory, members []member) {
	told := d.manifested(ctx)
	members = d.tokenFiles(members, told)
	for split, group := range bySplit(members) {
		var shards []typedShard
		inferred := false
		for _, m := range group {
			inferred = inferred || told[m.object] == DTypeUnknown
			shards = append(shards, tokensShard(d, m.object, m.head.(tokenGuess).dtype))
		}
		for _, set := range d.addByType(split, shards) {
			switch {
			case d.opt.DType != DTypeUnknown:
				set.note("no header: the dtype is the given one")
			case inferred:
				set.note("no header: the dtype was inferred from values, and --dtype overrides it")
			default:
				set.note("no header: the dtype is that of " + ManifestName)
			}
			set.NoDocuments = "the format does not say where documents begin: hbmfs pack can find them by their end-of-text token"
		}
	}
}

// tokenFiles returns the members that are taken for tokens, with the dtype that is used. The values of some files do
// not tell, such as padding at their start. These go with the files whose names differ in digits only: leaving them out
// would cut a piece out of the stream.
func (d *directory) tokenFiles(members []member, told map[*Object]DType) []member {
	families, plain := map[string][]DType{}, map[string]bool{}
	for _, m := range members {
		dtype, family := m.head.(tokenGuess).dtype, labelOf(baseOf(m.object.Name)).alike
		plain[family] = plain[family] || m.head.(tokenGuess).other == ""
		if dtype != DTypeUnknown && !slices.Contains(families[family], dtype) {
			families[family] = append(families[family], dtype)
		}
	}
	var out []member
	for _, m := range members {
		guess := m.head.(tokenGuess)
		alike := labelOf(baseOf(m.object.Name)).alike
		family := families[alike]
		if guess.weak && plain[alike] {
			guess.other = ""
		}
		why := ""
		switch {
		case d.opt.DType == DTypeUnknown && told[m.object] != DTypeUnknown:
			guess.dtype = told[m.object]
		case guess.other != "" && (d.opt.DType != U8 || guess.other != textGuess): // tokens that are bytes look like text
			why = "this is " + guess.other + ", not tokens"
		case d.opt.DType != DTypeUnknown:
			guess.dtype = d.opt.DType
		case guess.dtype == DTypeUnknown && len(family) == 1:
			guess.dtype = family[0]
		case guess.dtype == DTypeUnknown:
			why = "the values do not show whether they are tokens of 2 or of 4 bytes: give their type by --dtype"
		}
		switch {
		case why == "":
			out = append(out, member{m.object, guess})
		case d.opt.Format == "tokens": // somebody said that these are tokens
			d.problem(m.object, 0, "%s", why)
		}
	}
	return out
}

// MaxTokensManifest is the most bytes of a manifest that tells dtypes: one of several terabytes of tokens.
const MaxTokensManifest = 64 << 20

// manifested gives the dtypes of the headerless files that hbmfs pack wrote here, as its manifest has them. A manifest that cannot
// be read tells nothing: --verify says what is wrong with it.
func (d *directory) manifested(ctx context.Context) map[*Object]DType {
	data := d.opt.Manifest
	if o := d.sibling(ManifestName); o != nil {
		if o.Size > MaxTokensManifest {
			return nil
		}
		data = make([]byte, o.Size)
		if n, _ := o.ReadAt(ctx, data, 0); int64(n) < o.Size {
			return nil
		}
	}
	m, err := ParseManifest(data)
	if err != nil || m.Format != "nanogpt" {
		return nil
	}
	dtype, err := ParseDType(m.DType)
	if err != nil || dtype != U16 && dtype != U32 { // what nanoGPT has
		return nil
	}
	told := map[*Object]DType{}
	for _, f := range m.Files {
		if file := d.sibling(f.Name); file != nil && file.Size == f.Size {
			told[file] = dtype
		}
	}
	return told
}

// tokensShard makes a shard of a file that is tokens from its first byte to its last.
func tokensShard(d *directory, o *Object, dtype DType) typedShard {
	h := newShard(o)
	width := int64(dtype.Size())
	if o.Size%width != 0 {
		d.volume.bad(h, corruptf(o, o.Size, "%d bytes are no whole number of %s", o.Size, dtype))
		return typedShard{h, dtype}
	}
	h.Tokens = o.Size / width
	h.Data.Add(o, 0, o.Size)
	return typedShard{h, dtype}
}
