package liar

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// GSItem is an object of a listing as Google's JSON API has it.
func GSItem(name string, size int, more ...string) string {
	quoted, err := json.Marshal(name)
	if err != nil {
		panic(err)
	}
	fields := map[string]string{"size": strconv.Itoa(size), "generation": GSGeneration(name, size), "updated": "2026-01-01T00:00:00Z"}
	for i := 0; i < len(more); i += 2 {
		fields[more[i]] = more[i+1]
	}
	text := `{"kind":"storage#object","name":` + string(quoted)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		value, err := json.Marshal(fields[key])
		if err != nil {
			panic(err)
		}
		text += fmt.Sprintf(",%q:%s", key, value)
	}
	return text + "}"
}

// GSGeneration is the version of an object.
func GSGeneration(name string, size int) string {
	return strconv.Itoa(1_700_000_000_000 + 1000*size + len(name))
}

// GSList is a page of a listing, after which one follows where there is a token.
func GSList(token string, prefixes []string, items ...string) string {
	text := `{"kind":"storage#objects"`
	if token != "" {
		text += `,"nextPageToken":"` + token + `"`
	}
	if len(prefixes) > 0 {
		text += `,"prefixes":["` + strings.Join(prefixes, `","`) + `"]`
	}
	return text + `,"items":[` + strings.Join(items, ",") + `]}`
}

// gsPage lists a directory of the bucket.
func (l *Liar) gsPage(x *Exchange) {
	prefix := x.R.URL.Query().Get("prefix")
	var items []string
	below := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(l.Files)) {
		rest, ok := strings.CutPrefix(name, prefix)
		if dir, _, deep := strings.Cut(rest, "/"); ok && deep {
			below[prefix+dir+"/"] = true
		} else if ok {
			sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(l.Files[name], crc32.MakeTable(crc32.Castagnoli)))
			items = append(items, GSItem(name, len(l.Files[name]), "crc32c", base64.StdEncoding.EncodeToString(sum)))
		}
	}
	x.JSON(http.StatusOK, GSList("", slices.Sorted(maps.Keys(below)), items...))
}

// JSON sends a JSON document.
func (x *Exchange) JSON(status int, body string) {
	x.W.Header().Set("Content-Type", "application/json; charset=UTF-8")
	x.W.WriteHeader(status)
	_, _ = x.W.Write([]byte(body)) // they may have hung up
}
