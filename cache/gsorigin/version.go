package gsorigin

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// version is what is known of an object's version. As text it is the generation, and then words: crc32c=BASE64, as Google
// writes it, and gzip for objects that are stored in this encoding.
type version struct {
	generation string
	crc32c     string // base64 of the checksum of all bytes, big-endian; "" where the server does not tell it
	gzip       bool
}

func (v version) String() string {
	text := v.generation
	if v.crc32c != "" {
		text += " crc32c=" + v.crc32c
	}
	if v.gzip {
		text += " gzip"
	}
	return text
}

func parseVersion(text string) (v version, err error) {
	words := strings.Fields(text)
	if len(words) == 0 || strings.Trim(words[0], "0123456789") != "" {
		return v, fmt.Errorf("%w: %.100q is no version of an object in Google Cloud Storage", fs.ErrInvalid, text)
	}
	v.generation = words[0]
	for _, w := range words[1:] {
		if sum, ok := strings.CutPrefix(w, "crc32c="); ok {
			v.crc32c = sum
		}
		v.gzip = v.gzip || w == "gzip"
	}
	return v, nil
}

// Sum gives the CRC-32C (Castagnoli) of all bytes of an object by its version.
func Sum(text string) (crc32c uint32, known bool) {
	v, err := parseVersion(text)
	if err != nil {
		return 0, false
	}
	sum, err := base64.StdEncoding.DecodeString(v.crc32c)
	if err != nil || len(sum) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(sum), true
}

// of is the version that an answer is of, in the words of the one that was asked for. An object in an encoding comes as it is stored: its header
// no longer says so, since it is the object's and not the answer's.
func (v version) of(h http.Header, asked string) string {
	if v.gzip && strings.EqualFold(h.Get("Content-Encoding"), "gzip") && len(h.Values("Content-Encoding")) == 1 {
		h.Del("Content-Encoding")
	}
	got := version{generation: h.Get("X-Goog-Generation"), gzip: v.gzip}
	for line := range strings.SplitSeq(strings.Join(h.Values("X-Goog-Hash"), ","), ",") {
		if sum, ok := strings.CutPrefix(strings.TrimSpace(line), "crc32c="); ok {
			got.crc32c = sum
		}
	}
	if got.generation == v.generation && (got.crc32c == "" || v.crc32c == "" || got.crc32c == v.crc32c) {
		return asked
	}
	if got.generation == "" {
		return ""
	}
	return fmt.Sprintf("%.*s", fetch.MostVersion, got)
}
