package azorigin

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/layout"
)

// version is what is known of an object's version. As text it is words: md5:HEX, the ETag, and in:ENCODING for objects that are
// stored with one.
type version struct {
	etag     string // without quotes
	md5      string // of all bytes, in hex; "" where the service has none
	encoding string
}

const inEncoding = "in:"

func (v version) String() string {
	text := v.etag
	if v.md5 != "" {
		text = layout.MD5Version + v.md5 + " " + text
	}
	if v.encoding != "" {
		text += " " + inEncoding + v.encoding
	}
	return text
}

func parseVersion(text string) (v version, err error) {
	for _, w := range strings.Fields(text) {
		if sum, ok := strings.CutPrefix(w, layout.MD5Version); ok {
			v.md5 = sum
		} else if v.encoding, ok = strings.CutPrefix(w, inEncoding); !ok {
			v.encoding, v.etag = "", w
		}
	}
	if !isTag(v.etag) {
		return v, fmt.Errorf("%w: %.100q is no version of an object in Azure", fs.ErrInvalid, text)
	}
	return v, nil
}

// isTag tells whether a text may be an ETag, and a word.
func isTag(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == ':' })
}

// hexOf gives a checksum in hex that Azure writes in base64, "" for one that is none.
func hexOf(text string) string {
	sum, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(sum) != 16 {
		return ""
	}
	return hex.EncodeToString(sum)
}

// versionOf makes a version of what a listing or the headers of an object say. One without a usable ETag is empty.
func versionOf(etag, md5, encoding string) version {
	if etag = strings.Trim(etag, `"`); !isTag(etag) {
		return version{}
	}
	if encoding = strings.ToLower(encoding); strings.Trim(encoding, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || encoding == "identity" {
		encoding = ""
	}
	return version{etag, hexOf(md5), encoding}
}

// of is the version that an answer is of, in the words of the one that was asked for. An object in an encoding comes as it is stored: its header
// no longer says so, since it is the object's and not the answer's.
func (v version) of(h http.Header, asked string) string {
	if v.encoding != "" && strings.EqualFold(h.Get("Content-Encoding"), v.encoding) && len(h.Values("Content-Encoding")) == 1 {
		h.Del("Content-Encoding")
	}
	got := versionOf(h.Get("ETag"), h.Get("X-Ms-Blob-Content-Md5"), v.encoding) // Content-MD5 is of the range
	switch {
	case got.etag == "": // none, or a weak one
		return fetch.Said(h.Get("ETag"))
	case got.etag == v.etag && (got.md5 == "" || v.md5 == "" || got.md5 == v.md5):
		return asked
	}
	return fmt.Sprintf("%.*s", fetch.MostVersion, got)
}
