package layout

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// tokenGuess is what the values at the start of a headerless file say about it.
type tokenGuess struct {
	dtype DType  // U16 or U32; DTypeUnknown where the values do not tell
	other string // what the file is instead of tokens, "" where it may be tokens
}

// textGuess is what other says of text.
const textGuess = "text"

// guessTokens looks at the first bytes of a file without a header. Tokens of text have small ids more often than large
// ones and repeat themselves, which random bytes, weights, samples of sound and machine code do not. It would rather
// miss tokens, which --dtype brings back, than make a stream of what is none.
func guessTokens(head []byte) tokenGuess {
	if what := otherFormat(head); what != "" {
		return tokenGuess{other: what}
	}
	if isText(head) {
		return tokenGuess{other: textGuess}
	}
	wide, narrow := countValues(head, 4), countValues(head, 2)
	switch {
	case wide.looksLikeU32():
		return tokenGuess{dtype: U32}
	case narrow.looksLikeU16():
		return tokenGuess{dtype: U16}
	}
	return tokenGuess{}
}

// otherFormat names the format whose magic number the head begins with, "" for none.
func otherFormat(head []byte) string {
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
		if strings.HasPrefix(string(head), f.magic) {
			return f.name
		}
	}
	if len(head) > 262 && string(head[257:262]) == "ustar" {
		return "a tar archive"
	}
	return ""
}

// isText reports whether head is UTF-8 without control characters, or mostly printable ASCII.
func isText(head []byte) bool {
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

// valueCounts is what the values of a sample look like, read as little-endian integers of one width.
type valueCounts struct {
	count, distinct    int
	zeros, low, signed int // values that are 0, below 8192, and at or above 32768
	top                int // values of 61440 and above
	odd                int // values at odd places that are not 0
	ascending          bool
	bits               uint32 // all values or-ed: bounds them
	lowBits, highBits  uint32 // the same of their halves
	flags              bool   // every byte is 0 or 1
}

func countValues(head []byte, width int) valueCounts {
	c := valueCounts{count: len(head) / width, ascending: true, flags: len(bytes.Trim(head, "\x00\x01")) == 0}
	seen := make(map[uint32]struct{}, c.count)
	before := uint32(0)
	for i := range c.count {
		p := head[i*width:]
		v := uint32(binary.LittleEndian.Uint16(p))
		if width == 4 {
			v = binary.LittleEndian.Uint32(p)
		}
		seen[v] = struct{}{}
		c.zeros += count(v == 0)
		c.low += count(v < 1<<13)
		c.signed += count(v >= 1<<15)
		c.top += count(v >= 0xf000)
		c.odd += count(i%2 == 1 && v != 0)
		c.ascending = c.ascending && v >= before
		c.bits, c.lowBits, c.highBits = c.bits|v, c.lowBits|v&0xffff, c.highBits|v>>16
		before = v
	}
	c.distinct = len(seen)
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

// varied says that the values are no constant, padding, table of offsets, or flags.
func (c valueCounts) varied() bool {
	return c.count >= minSample && c.distinct >= 3 && c.zeros*2 <= c.count && !c.ascending && !c.flags
}

// looksLikeU32: every id is below 2^20, a bound that no vocabulary reaches and that the high halves of u16 tokens pass
// at once, unless their vocabulary is tiny. Every second value 0 is an array of 8-byte integers.
func (c valueCounts) looksLikeU32() bool {
	return c.varied() && c.bits < 1<<20 && (c.highBits == 0 || c.lowBits >= 1<<8) && c.odd > 0
}

// looksLikeU16: a quarter of the ids is below an eighth of the range (random: an eighth, weights: by their exponents
// and signs far less), few are above half of it, next to none near its end, and one in twenty is there twice.
func (c valueCounts) looksLikeU16() bool {
	return c.varied() && c.low*4 >= c.count && c.signed*10 <= c.count*3 && c.top*64 <= c.count && c.distinct*20 <= c.count*19
}
