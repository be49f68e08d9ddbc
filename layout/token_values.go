package layout

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// tokenGuess is the guess from the values at the start of a headerless file.
type tokenGuess struct {
	dtype  DType  // U16 or U32 where the values are token ids by all appearance; else DTypeUnknown
	likely DType  // the type that its elements seem to have, whether they are token ids or not; DTypeUnknown where nothing tells
	other  string // the format of a file that is no tokens, "" where it may be tokens
	weak   bool   // other is known by two or three bytes, which one shard of tokens in some ten thousand begins with, too
	unseen bool   // the file is decoded as a whole, so nobody has looked at its values
}

// textGuess is other of a text.
const textGuess = "text"

// guessTokens looks at the first bytes of a file without a header. A guess is well founded, and gives a view, if two things hold:
//
//   - Element width: a model of the bytes with a period of 2 (or 4) saves 32 bits at least over each shorter period, and no longer one
//     saves more. See [codeLengths].
//   - Token ids: small ones are more frequent than large ones and repeat themselves. Weights and samples of sound differ.
//
// So it misses some tokens, which --dtype brings back. It makes no stream of other bytes.
func guessTokens(head []byte, code *codeLengths) tokenGuess {
	if what, magic := otherFormat(string(head[:min(len(head), 512)])); what != "" {
		return tokenGuess{other: what, weak: magic < 4}
	}
	if isText(head) {
		return tokenGuess{other: textGuess}
	}
	g := tokenGuess{likely: likelyType(head, code.width(head))}
	if g.likely != U16 && g.likely != U32 {
		return g
	}
	c := countValues(head, g.likely.Size())
	if g.likely == U16 && c.looksLikeIDs() || g.likely == U32 && c.varied() {
		g.dtype = g.likely
	}
	return g
}

// likelyType is the type of elements of a width. Of types that the values cannot tell apart, it is the one of token ids.
func likelyType(head []byte, width int) DType {
	zero, ones, float := true, true, 0 // of the last byte of each element
	for i := width - 1; width > 2 && i < len(head); i += width {
		if width == 8 { // ids are below 2^32
			zero = zero && binary.LittleEndian.Uint32(head[i-3:]) == 0
		}
		zero, ones = zero && head[i] == 0, ones && (head[i] == 0 || head[i] == 0xff)
		float += count(head[i]&0x7f >= 0x30 && head[i]&0x7f < 0x50)
	}
	floats := width > 2 && float*width*10 >= len(head)*9
	switch {
	case width == 1:
		return U8
	case width == 2:
		return U16
	case width == 4 && floats:
		return F32
	case width == 4 && ones && !zero:
		return I32
	case width == 4 && below20Bits(head):
		return U32
	case width == 8 && floats:
		return F64
	case width == 8 && zero:
		return I64
	}
	return DTypeUnknown
}

// otherFormat names the format whose magic number the head begins with, and the number's bytes: "" and 0 for none.
func otherFormat(head string) (string, int) {
	for _, f := range []struct{ magic, name string }{
		{"PK\x03\x04", "a zip archive (as torch.save writes)"}, {"\x80\x02", "a pickle"}, {"\x80\x03", "a pickle"},
		{"\x80\x04\x95", "a pickle"}, {"\x80\x05\x95", "a pickle"}, {"\x1f\x8b", "gzip"}, {"\x28\xb5\x2f\xfd", "zstd"},
		{"BZh", "bzip2"}, {"\xfd7zXZ", "xz"}, {"\x04\x22\x4d\x18", "lz4"}, {"\x7fELF", "an ELF program"}, {"MZ", "a Windows program"},
		{npyMagic, "NumPy .npy"}, {megatronMagic, "a Megatron index"}, {"TNTIDX\x00\x00", "a fairseq index"},
		{"LITPKDS", "a TinyLlama file"}, {"PAR1", "Parquet"}, {"ARROW1", "Arrow"}, {"\xff\xff\xff\xff", "an Arrow stream"},
		{"\x89HDF", "HDF5"}, {"\x89PNG", "PNG"}, {"\xff\xd8\xff", "JPEG"}, {"RIFF", "RIFF"}, {"GGUF", "GGUF"}, {"%PDF", "PDF"},
		{"SQLite format 3", "SQLite"}, {"\xff\xfe", "UTF-16 text"}, {"\xfe\xff", "UTF-16 text"},
		{"\x8a\xd8\x34\x01\x01\x00\x00\x00", "an evaluation set of llm.c"}, {"fast_llm_prepared_dataset", "a Fast-LLM dataset"},
	} {
		if strings.HasPrefix(head, f.magic) {
			return f.name, len(f.magic)
		}
	}
	if len(head) > 262 && head[257:262] == "ustar" {
		return "a tar archive", len("ustar")
	}
	return "", 0
}

// isText reports whether head is UTF-8 without control characters, or mostly printable ASCII.
func isText(head []byte) bool {
	if bytes.IndexByte(head, 0) >= 0 { // soon found in tokens, and never in text
		return false
	}
	printable, control := 0, 0
	for _, c := range head {
		switch {
		case c >= 0x20 && c < 0x7f, c == '\n', c == '\t', c == '\r':
			printable++
		case c < 0x20 || c == 0x7f:
			control++
		}
	}
	cut := head // without a character that the end of the head cuts
	for i := 0; i < utf8.UTFMax-1 && len(cut) > 0 && !utf8.Valid(cut); i++ {
		cut = cut[:len(cut)-1]
	}
	return len(head) > 0 && (control == 0 && utf8.Valid(cut) || printable*100 >= len(head)*85)
}

// below20Bits reports whether all u32 are below 2^20. No vocabulary reaches this bound.
func below20Bits(head []byte) bool {
	for ; len(head) >= 4; head = head[4:] {
		if head[3] != 0 || head[2] >= 1<<4 {
			return false
		}
	}
	return true
}

// valueCounts counts the values of a sample, read as little-endian integers of 2 or 4 bytes.
type valueCounts struct {
	count              int
	distinct           int // by their low 16 bits
	zeros, low, signed int // values that are 0, below 8192, and at or above 32768
	top                int // values of 61440 and above
	odd                int // values at odd places that are not 0
	ascending          bool
	flags              bool // every byte is 0 or 1
}

func countValues(head []byte, width int) valueCounts {
	c := valueCounts{count: len(head) / width, ascending: true, flags: len(bytes.Trim(head, "\x00\x01")) == 0}
	var seen [1 << 16 / 64]uint64
	before := uint32(0)
	for i := range c.count {
		var v uint32
		if width == 4 {
			v = binary.LittleEndian.Uint32(head[4*i:])
		} else {
			v = uint32(binary.LittleEndian.Uint16(head[width*i:]))
		}
		word, bit := v&0xffff/64, uint64(1)<<(v%64)
		c.distinct += count(seen[word]&bit == 0)
		seen[word] |= bit
		c.zeros += count(v == 0)
		c.low += count(v < 1<<13)
		c.signed += count(v >= 1<<15)
		c.top += count(v >= 0xf000)
		c.odd += count(i%2 == 1 && v != 0)
		c.ascending = c.ascending && v >= before
		before = v
	}
	return c
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// minSample is how many values a verdict needs.
const minSample = 32

// varied says that the values are no constant, padding, table of offsets, flags, or halves of larger integers.
func (c valueCounts) varied() bool {
	return c.count >= minSample && c.distinct >= 3 && c.zeros*2 <= c.count && c.odd > 0 && !c.ascending && !c.flags
}

// looksLikeIDs wants a quarter of the u16 below an eighth of the range; of random bytes that is an eighth, of weights
// far less. Few may be above half of the range, next to none near its end, and one in twenty must repeat.
func (c valueCounts) looksLikeIDs() bool {
	return c.varied() && c.low*4 >= c.count && c.signed*10 <= c.count*3 && c.top*64 <= c.count && c.distinct*20 <= c.count*19
}
