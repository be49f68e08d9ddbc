package gsorigin

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net/http"
	"strings"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/layout"
)

// version is what is known of an object's version. As text it is words: crc32c:HEX, the generation, and gzip for objects that are
// stored in this encoding.
type version struct {
	generation string
	crc32c     string // of all bytes, in hex; "" where the server does not tell it
	gzip       bool
}

func (v version) String() string {
	text := v.generation
	if v.crc32c != "" {
		text = layout.CRC32CVersion + v.crc32c + " " + text
	}
	if v.gzip {
		text += " gzip"
	}
	return text
}

func parseVersion(text string) (v version, err error) {
	for _, w := range strings.Fields(text) {
		if sum, ok := strings.CutPrefix(w, layout.CRC32CVersion); ok {
			v.crc32c = sum
		} else if w == "gzip" {
			v.gzip = true
		} else {
			v.generation = w
		}
	}
	if v.generation == "" || strings.Trim(v.generation, "0123456789") != "" {
		return v, fmt.Errorf("%w: %.100q is no version of an object in Google Cloud Storage", fs.ErrInvalid, text)
	}
	return v, nil
}

// hexOf gives a checksum in hex that Google writes in base64, "" for one that is none.
func hexOf(text string) string {
	sum, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(sum) != crc32.Size {
		return ""
	}
	return hex.EncodeToString(sum)
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
			got.crc32c = hexOf(sum)
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
