package liar

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// HubCommit is the one commit of the Hub.
const HubCommit = "0123456789abcdef0123456789abcdef01234567"

// Hub makes a liar of a Hugging Face Hub. The Hub is at 127.0.0.1, and its storage, which has all files and tells the lies about
// bytes, at another name of the same server. Lies about listings are the Hub's.
func Hub(t testing.TB, files map[string][]byte, read, list func(x *Exchange) bool) *Liar {
	l := &Liar{Files: maps.Clone(files), s3: true, read: read}
	l.hub = func(w http.ResponseWriter, r *http.Request) bool {
		x := &Exchange{W: w, R: r}
		api, isAPI := strings.CutPrefix(r.URL.Path, "/api/datasets/org/name/")
		name, isFile := strings.CutPrefix(r.URL.Path, "/datasets/org/name/resolve/"+HubCommit+"/")
		switch {
		case isAPI && !l.Honest.Load() && list != nil && list(x):
		case isAPI && strings.HasPrefix(api, "revision/"):
			x.Text(http.StatusOK, `{"sha": "`+HubCommit+`"}`)
		case isAPI && strings.HasPrefix(api, "commits/"):
			x.Text(http.StatusOK, `[{"id": "`+HubCommit+`", "date": "2026-01-01T00:00:00.000Z"}]`)
		case isAPI:
			var entries []string
			for _, name := range slices.Sorted(maps.Keys(l.Files)) {
				entries = append(entries, HubEntry(name, len(l.Files[name]), HubHash(l.Files[name])))
			}
			x.Text(http.StatusOK, "["+strings.Join(entries, ",")+"]")
		case isFile:
			w.Header().Set("X-Linked-Etag", `"`+HubHash(l.Files[name])+`"`)
			http.Redirect(w, r, strings.Replace(l.URL, "127.0.0.1", "localhost", 1)+"/"+Bucket+"/"+name, http.StatusFound)
		}
		return isAPI || isFile
	}
	return l.start(t)
}

// HubHash is the hash of a file as the Hub has it.
func HubHash(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// HubEntry is a file in a listing of the Hub.
func HubEntry(name string, size int, hash string) string {
	text, _ := json.Marshal(name) // a string
	return fmt.Sprintf(`{"type": "file", "oid": "%s", "size": %d, "path": %s, "lfs": {"oid": %q, "size": %d, "pointerSize": 130}}`, HubCommit, size, text, hash, size)
}
