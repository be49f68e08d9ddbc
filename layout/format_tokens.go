package layout

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// tokensProbe looks at the values of files whose names may be those of token files. It also accepts files that it
// cannot judge: other files of the same family, or --dtype, may tell.
func tokensProbe(o *Object, head []byte) any {
	if !isTokenName(o.Name) {
		return nil
	}
	return guessTokens(head, codes())
}

// isTokenName reports whether writers of headerless tokens use such a name.
func isTokenName(name string) bool {
	return slices.ContainsFunc(tokenSuffixes(), func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

func tokenSuffixes() []string {
	return []string{".bin", ".npy", ".tokens", ".tok", ".u16", ".u32", ".uint16", ".uint32"}
}

// unusedDType tells of a type that was given and that no set has: the files have names or headers that make them no headerless tokens.
func (x *indexer) unusedDType() {
	v, given := x.volume, x.opt.DType
	if given == DTypeUnknown || len(v.hints) > 0 || len(v.Objects) == 0 || slices.ContainsFunc(v.Sets, func(s *Set) bool { return s.DType == given }) {
		return
	}
	v.hints = append(v.hints, Hint{v.Objects[0].Name, fmt.Sprintf("--dtype %s has no effect on this file, nor on others here: it is for tokens without a header, in files that end with %s",
		given.Long(), strings.Join(tokenSuffixes(), ", "))})
}

func tokensAssemble(ctx context.Context, d *directory, members []member) {
	told := d.manifested(ctx)
	members = d.tokenFiles(members, told)
	for split, group := range bySplit(members) {
		var shards []typedShard
		guessed := false
		for _, m := range group {
			guessed = guessed || told[m.object] == DTypeUnknown
			shards = append(shards, tokensShard(d, m.object, m.head.(tokenGuess).dtype))
		}
		for _, set := range d.addByType(split, shards) {
			switch {
			case d.opt.DType != DTypeUnknown:
				set.note("no header: the dtype is the given one")
			case guessed:
				set.guess()
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
		guess, family := m.head.(tokenGuess), labelOf(baseOf(m.object.Name)).alike
		plain[family] = plain[family] || guess.other == ""
		if guess.dtype != DTypeUnknown && !slices.Contains(families[family], guess.dtype) {
			families[family] = append(families[family], guess.dtype)
		}
	}
	var out, unknown []member
	for _, m := range members {
		guess := m.head.(tokenGuess)
		alike := labelOf(baseOf(m.object.Name)).alike
		family := families[alike]
		if guess.weak && (plain[alike] || d.opt.Format != "" && d.opt.DType != DTypeUnknown) {
			guess.other = ""
		}
		given := d.opt.DType
		if given == DTypeUnknown {
			given = told[m.object]
		}
		switch {
		case given == DTypeUnknown && guess.other == "" && guess.dtype == DTypeUnknown && len(family) == 1 && guess.mayBe(family[0]):
			guess.dtype = family[0]
		case given != DTypeUnknown && (guess.other == "" || told[m.object] != DTypeUnknown || given == U8 && guess.other == textGuess): // tokens that are bytes look like text
			guess.dtype = given
		case given != DTypeUnknown && guess.weak:
			unknown = append(unknown, m)
			continue
		case guess.other != "":
			d.mustBeTokens(m.object, "this is "+guess.other+", not tokens")
			continue
		case guess.dtype == DTypeUnknown:
			unknown = append(unknown, m)
			continue
		}
		out = append(out, member{m.object, guess})
	}
	d.unknownTokens(unknown)
	return out
}

// mayBeTokens says that only two or three bytes, or none, speak against tokens: the files beside it may speak for them.
func (g tokenGuess) mayBeTokens() bool { return g.other == "" || g.weak }

// mayBe reports whether the values do not contradict a type that other files of the family have.
func (g tokenGuess) mayBe(family DType) bool {
	return g.likely == DTypeUnknown || g.likely.Size() == family.Size()
}

// mustBeTokens reports a problem where somebody said by --format that these are tokens.
func (d *directory) mustBeTokens(o *Object, why string) {
	if d.opt.Format != "" {
		d.problem(o, 0, "%s", why)
	}
}

// minHinted is the size from which on a file without a header may be an array, bytes.
const minHinted = 64

// unknownTokens names files that may be arrays without a header, and the flag that shows them: those of one directory that look alike in
// one sentence.
func (d *directory) unknownTokens(members []member) {
	sentences, groups := grouped(members, func(m member) string { return m.head.(tokenGuess).advice() })
	for i, group := range groups {
		for _, m := range group {
			d.mustBeTokens(m.object, sentences[i])
		}
		large := slices.DeleteFunc(group, func(m member) bool { return m.object.Size < minHinted })
		if d.opt.Format != "" || len(large) == 0 {
			continue
		}
		more := ""
		if len(large) > 1 {
			more = fmt.Sprintf("it and %d more in this directory: ", len(large)-1)
		}
		d.volume.hints = append(d.volume.hints, Hint{large[0].object.Name, more + sentences[i]})
	}
}

// advice says how to see a file whose type is not known.
func (g tokenGuess) advice() string {
	switch {
	case g.weak:
		return "it begins like " + g.other + ": if it holds tokens all the same, give --format tokens beside --dtype"
	case g.unseen:
		return "no header was looked for, because the file is decoded as a whole: if it holds tokens, give their type, as in --dtype uint16"
	case g.likely == DTypeUnknown:
		return "it has no header, and its values do not show their type: if they are tokens, give it, as in --dtype uint16"
	case g.likely == U16 || g.likely == U32:
		return fmt.Sprintf("it has no header, and its values look like %s, but not clearly like token ids: if they are, --dtype %s shows them", g.likely.Long(), g.likely.Long())
	}
	return fmt.Sprintf("it has no header, and its values look like %s: if they are tokens, --dtype %s shows them", g.likely.Long(), g.likely.Long())
}

// MaxTokensManifest is the most bytes of a manifest that tells dtypes: one of several terabytes of tokens.
const MaxTokensManifest = 64 << 20

// manifested gives the dtypes of the headerless files that hbmfs pack wrote here, as its manifest has them. A manifest that cannot
// be read tells nothing: --verify reports its error.
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
	dtype := shortDType(m.DType)
	if dtype != U16 && dtype != U32 { // the types of nanoGPT
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
