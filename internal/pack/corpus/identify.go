package corpus

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// kind is how a file is read, once it is decompressed.
type kind int

const (
	asText  kind = iota // one document
	asLines             // a document a line of JSON
	asArray             // a document an element of a JSON array
	asParquet
	asArrow
)

// sniffBytes of a file's start identify its format.
const sniffBytes = 64 << 10

// foreign is the start of files that hold no text, or none that can be told from the rest.
type foreign struct {
	at    int
	magic string
	name  string // after "it is"
}

// foreigners are files that datasets' directories have beside text. The list serves for names: files of none of these
// formats with bytes that no text has are refused as well.
func foreigners() []foreign {
	return []foreign{
		{0, "%PDF-", "a PDF document: extract its text first"},
		{0, "\x89PNG\r\n\x1a\n", "a PNG image"},
		{0, "\xff\xd8\xff", "a JPEG image"},
		{0, "GIF87a", "a GIF image"}, {0, "GIF89a", "a GIF image"},
		{0, "RIFF", "a RIFF file (WebP, WAVE or AVI)"},
		{4, "ftyp", "an MP4 or HEIF file"},
		{0, "OggS", "an Ogg file"}, {0, "ID3", "an MP3 file"}, {0, "fLaC", "a FLAC file"},
		{0, "PK\x03\x04", "a zip archive (or .docx, .epub, .npz, .pt): unpack it first"},
		{0, "PK\x05\x06", "an empty zip archive"},
		{257, "ustar", "a tar archive: unpack it first"},
		{0, "7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"}, {0, "Rar!\x1a\x07", "a RAR archive: unpack it first"},
		{0, "\x04\x22\x4d\x18", "an LZ4 stream: decompress it with lz4 -d"},
		{0, "\xff\x06\x00\x00sNaPpY", "a snappy stream: decompress it first"},
		{0, "\x7fELF", "a program (ELF)"}, {0, "MZ", "a program (PE)"}, {0, "\xcf\xfa\xed\xfe", "a program (Mach-O)"},
		{0, "\xca\xfe\xba\xbe", "a Java class or a program (Mach-O)"}, {0, "\x00asm", "a WebAssembly module"},
		{0, "SQLite format 3\x00", "an SQLite database"},
		{0, "\x89HDF\r\n\x1a\n", "an HDF5 file"},
		{0, "GGUF", "GGUF weights"},
		{0, "\x93NUMPY", "a NumPy array"},
		{0, "Obj\x01", "an Avro file: convert it to Parquet"},
		{0, "ORC", "an ORC file: convert it to Parquet"},
		{0, "PARE", "a Parquet file whose footer is encrypted"},
		{0, "FEA1", "a Feather V1 file: write it as Arrow IPC or Parquet"},
		{0, "WARC/1.", "a web archive (WARC or WET): extract its texts to JSONL or Parquet first"},
		{0, "MMIDIDX\x00", "a Megatron index, whose tokens lie beside it"},
		{0, "\xff\xfe", "text in UTF-16: convert it with iconv -f UTF-16 -t UTF-8"}, {0, "\xfe\xff", "text in UTF-16: convert it with iconv -f UTF-16 -t UTF-8"},
		{0, "\x80\x02}", "a Python pickle"}, {0, "\x80\x04\x95", "a Python pickle"}, {0, "\x80\x05\x95", "a Python pickle"},
	}
}

// refusal says why a file that begins with head is no text, or nothing. A file that nobody named must be valid UTF-8;
// of one that was named, a third may be repaired.
func refusal(head []byte, named bool) string {
	for _, f := range foreigners() {
		if len(head) >= f.at && bytes.HasPrefix(head[f.at:], []byte(f.magic)) && !readsAsText(head, f) {
			return "it is " + f.name
		}
	}
	if i := bytes.IndexByte(head, 0); i >= 0 {
		return fmt.Sprintf("it is no text: byte %d is NUL", i)
	}
	controls, invalid := unreadable(head)
	switch {
	case controls > len(head)/20+1:
		return fmt.Sprintf("it is no text: %d of its first %d bytes are control characters", controls, len(head))
	case invalid > len(head)/3:
		return fmt.Sprintf("it is no text: %d of its first %d bytes are not UTF-8", invalid, len(head))
	case invalid > 0 && !named:
		return fmt.Sprintf("it is not UTF-8: %d of its first %d bytes are not. Name it, or use --include, and they are replaced", invalid, len(head))
	}
	return ""
}

// readsAsText keeps prose that happens to begin like a file of another kind. A magic of letters alone is believed only
// where bytes that no text has follow.
func readsAsText(head []byte, f foreign) bool {
	if slices.Contains([]string{"RIFF", "ftyp", "OggS", "ID3", "fLaC", "MZ", "GGUF", "ORC", "PARE", "FEA1", "GIF87a", "GIF89a"}, f.magic) {
		controls, invalid := unreadable(head)
		return bytes.IndexByte(head, 0) < 0 && controls == 0 && invalid == 0
	}
	return false
}

// unreadable counts control characters and bytes that are not UTF-8.
func unreadable(head []byte) (controls, invalid int) {
	full := head
	for i := 1; len(head) >= sniffBytes && i < utf8.UTFMax; i++ { // the head may end within a rune
		if tail := head[len(head)-i:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				full = head[:len(head)-i]
			}
			break
		}
	}
	for i := 0; i < len(full); {
		c := full[i]
		if c < utf8.RuneSelf {
			if c < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f' && c != '\b' && c != 0x1b || c == 0x7f {
				controls++
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(full[i:])
		if r == utf8.RuneError && n == 1 {
			invalid++
		}
		i += n
	}
	return controls, invalid
}

// isParquet and isArrow know columnar files by their first bytes.
func isParquet(head []byte) bool { return bytes.HasPrefix(head, []byte("PAR1")) }

func isArrow(head []byte) bool {
	return bytes.HasPrefix(head, []byte("ARROW1\x00\x00")) ||
		len(head) >= 12 && bytes.HasPrefix(head, []byte("\xff\xff\xff\xff")) && head[7] == 0 && !bytes.HasPrefix(head[4:], []byte("\xff\xff"))
}

// byteOrderMark is a mark that some writers put before UTF-8. It is no part of JSON (RFC 8259, section 8.1, lets readers
// skip it).
const byteOrderMark = "\xef\xbb\xbf"

// kindOfText tells JSON from text by the first line. A name that says JSON Lines is believed.
func (c *Corpus) kindOfText(f *File, head []byte) kind {
	switch c.opt.From {
	case "jsonl":
		return asLines
	case "text":
		return asText
	}
	ext := contentExt(f.Name)
	if ext == ".jsonl" || ext == ".ndjson" {
		return asLines
	}
	head = bytes.TrimPrefix(head, []byte(byteOrderMark))
	trimmed := bytes.TrimLeft(head, " \t\r\n")
	switch {
	case bytes.HasPrefix(trimmed, []byte("{")):
		first, rest, ended := bytes.Cut(head, []byte("\n"))
		if len(first) > c.limit {
			break
		}
		_, _, err := textOf(bytes.TrimSpace(first), c.opt.Key)
		switch {
		case err == nil:
			return asLines
		case !errors.Is(err, errSyntax) && ext == ".json" && bytes.HasPrefix(rest, []byte("{")):
			return asLines // that the key is missing is an error then
		case !ended && len(head) >= sniffBytes && (ext == ".json" || ext == "") && bytes.Contains(head, fmt.Appendf(nil, "%q:", c.opt.Key)):
			return asLines // its first line is longer than the head
		}
	case bytes.HasPrefix(trimmed, []byte("[")) && ext != ".txt" && ext != ".md":
		inner := bytes.TrimLeft(trimmed[1:], " \t\r\n")
		if !bytes.HasPrefix(inner, []byte("{")) {
			break
		}
		if f.named && ext == ".json" || arrayHasKey(inner, c.opt.Key) {
			return asArray
		}
	}
	return asText
}

// arrayHasKey reports whether the first element of an array, whose start may be all that is there, has a text under key.
func arrayHasKey(inner []byte, key string) bool {
	if end := valueEnd(inner); end > 0 {
		_, _, err := textOf(inner[:end], key)
		return err == nil
	}
	return len(inner) > sniffBytes/2 && bytes.Contains(inner, fmt.Appendf(nil, "%q:", key))
}
