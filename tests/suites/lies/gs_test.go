package lies_test

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
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// gsItem is an object of a listing as Google's JSON API has it.
func gsItem(name string, size int, more ...string) string {
	quoted, err := json.Marshal(name)
	if err != nil {
		panic(err)
	}
	fields := map[string]string{"size": strconv.Itoa(size), "generation": gsGeneration(name, size), "updated": "2026-01-01T00:00:00Z"}
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

func gsGeneration(name string, size int) string {
	return strconv.Itoa(1_700_000_000_000 + 1000*size + len(name))
}

func gsList(token string, prefixes []string, items ...string) string {
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
func (l *liar) gsPage(x *exchange) {
	prefix := x.r.URL.Query().Get("prefix")
	var items []string
	below := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(l.files)) {
		rest, ok := strings.CutPrefix(name, prefix)
		if dir, _, deep := strings.Cut(rest, "/"); ok && deep {
			below[prefix+dir+"/"] = true
		} else if ok {
			sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(l.files[name], crc32.MakeTable(crc32.Castagnoli)))
			items = append(items, gsItem(name, len(l.files[name]), "crc32c", base64.StdEncoding.EncodeToString(sum)))
		}
	}
	x.json(http.StatusOK, gsList("", slices.Sorted(maps.Keys(below)), items...))
}

func (x *exchange) json(status int, body string) {
	x.w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	x.w.WriteHeader(status)
	_, _ = x.w.Write([]byte(body)) // they may have hung up
}

func isGSList(x *exchange) bool { return x.name == "" && x.r.URL.Query().Has("delimiter") }

// gsListings has a lie in each answer of Google's API to the questions what there is.
func gsListings() map[string]listLie {
	page := func(body string) func(x *exchange) { return func(x *exchange) { x.json(http.StatusOK, body) } }
	endless := func(text, again string) func(x *exchange) {
		return func(x *exchange) { x.json(http.StatusOK, text); x.forever(strings.Repeat(again, 1000), 0) }
	}
	told := func(tell func(x *exchange)) func(*exchange, int) bool { return always(isGSList, tell) }
	shard := gsItem("shard", 600_000)
	open := `{"kind":"storage#objects","items":[`
	return map[string]listLie{
		"endless name":       {tell: told(endless(open+`{"name":"`, "k")), says: "more than 16777216 bytes"},
		"endless items":      {tell: told(endless(open+shard, ","+shard)), says: "more than 16777216 bytes"},
		"endless space":      {tell: told(endless("", " \n")), says: "more than 16777216 bytes"},
		"a million items":    {tell: told(page(open + "{}" + strings.Repeat(",{}", 1_000_000) + "]}")), says: "more than the 1000 names"},
		"a million prefixes": {tell: told(page(`{"kind":"storage#objects","prefixes":["a/"` + strings.Repeat(`,"a/"`, 1_000_000) + "]}")), says: "more than the 1000 names"},
		"deep JSON":          {tell: told(page(strings.Repeat("[", 1_000_000))), says: "cannot be read", tried: true},
		"no list":            {tell: told(page(`{"kind":"storage#objects","items":7}`)), says: "where a list belongs"},
		"one token for ever": {tell: told(page(gsList("again", nil, shard))), says: "the same continuation token"},
		"two tokens in turn": {tell: func(x *exchange, n int) bool {
			return told(page(gsList("token"+strconv.Itoa(n%2), nil, shard)))(x, n)
		}, says: "the same continuation token"},
		"pages without names": {tell: func(x *exchange, n int) bool { return told(page(gsList("token"+strconv.Itoa(n), nil)))(x, n) }, says: "does not advance"},
		"pages without end": {tell: func(x *exchange, n int) bool {
			return told(page(gsList("token"+strconv.Itoa(n), nil, gsItem(fmt.Sprintf("shard-%08d", n), 1))))(x, n)
		}, says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"directories that name each other": {tell: told(func(x *exchange) {
			dir := map[string]string{"": "a/", "a/": "b/", "b/": "a/"}[x.r.URL.Query().Get("prefix")]
			page(gsList("", []string{dir}))(x)
		}), says: "lists"},
		"a directory that is itself": {tell: told(func(x *exchange) {
			dir := x.r.URL.Query().Get("prefix")
			if dir == "" {
				dir = "a/"
			}
			page(gsList("", []string{dir}))(x)
		}), says: "as a directory"},
		"a directory in itself without end": {tell: told(func(x *exchange) { page(gsList("", []string{x.r.URL.Query().Get("prefix") + "a/"}))(x) }), says: "at most 1024"},
		"directories without end": {tell: told(func(x *exchange) {
			prefix := x.r.URL.Query().Get("prefix")
			page(gsList("", []string{prefix + "a/", prefix + "b/", prefix + "c/"}))(x)
		}), says: "--max-listing", flags: []string{"--max-listing=100KiB"}},
		"names of elsewhere":     {tell: told(func(x *exchange) { page(gsList("", []string{"a/"}, gsItem("b/x", 1)))(x) }), says: `was asked for names that begin with "a/"`},
		"a name too long":        {tell: told(page(gsList("", nil, gsItem(strings.Repeat("k", 2000), 1)))), says: "at most 1024"},
		"a generation too long":  {tell: told(page(gsList("", nil, gsItem("shard", 1, "generation", strings.Repeat("1", 2000))))), says: "version"},
		"no generation's digits": {tell: told(page(gsList("", nil, gsItem("shard", 1, "generation", "1&alt=x")))), says: "with the generation"},
		"a size of words":        {tell: told(page(gsList("", nil, gsItem("shard", 1, "size", "many")))), says: "with the size"},
		"a size without end":     {tell: told(page(gsList("", nil, gsItem("shard", 1, "size", "99999999999999999999")))), says: "with the size"},
		"a web page":             {tell: told(page("<!DOCTYPE html><html><body/></html>")), says: "cannot be read", tried: true},
		"another document":       {tell: told(page(`{"kind":"storage#buckets"}`)), says: "is this address a server of Google Cloud Storage?"},
		"accepted":               {tell: told(func(x *exchange) { x.json(http.StatusAccepted, "{}") }), says: "202", tried: true},
		"no content":             {tell: told(func(x *exchange) { x.json(http.StatusNoContent, "") }), says: "204", tried: true},
		"a part":                 {tell: told(func(x *exchange) { x.json(http.StatusPartialContent, gsList("", nil, shard)) }), says: "206", tried: true},
		"in gzip":                {tell: told(func(x *exchange) { x.w.Header().Set("Content-Encoding", "gzip"); page(gsList("", nil, shard))(x) }), says: "encoding"},
		"half of it":             {tell: told(page(open + shard)), says: "unexpected end of JSON", tried: true},
		"a circle of redirects":  {tell: told(func(x *exchange) { http.Redirect(x.w, x.r, x.r.URL.String(), http.StatusMovedPermanently) }), says: "301"},
		"what a terminal obeys": {tell: told(func(x *exchange) {
			x.json(http.StatusBadRequest, `{"error":{"code":400,"message":"a\u009bb"}}`)
		}), says: "400 Bad Request: a?b"},
	}
}

// TestGSListingsOfLies mounts a bucket of Google's that lists objects that cannot be: the mount serves the others, and the log names each.
func TestGSListingsOfLies(t *testing.T) {
	blackbox.NeedFUSE(t)
	data := origintest.Data(1<<16, 1)
	for name, lie := range map[string]struct{ item, says string }{
		"a negative size":    {gsItem("z.bin", 0, "size", "-1"), "less than nothing"},
		"too large a size":   {gsItem("z.bin", 0, "size", "9223372036854775807"), "more than a mount shows"},
		"no version":         {gsItem("z.bin", 1, "generation", ""), "left out"},
		"a name that leaves": {gsItem("../z.bin", 1), "no path of a file"},
		"a name twice":       {gsItem("train.bin", 5), "listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newGSLiar(t, map[string][]byte{"train.bin": data}, nil, func(x *exchange) bool {
				if !isGSList(x) {
					return false
				}
				x.json(http.StatusOK, gsList("", nil, gsItem("train.bin", len(data)), lie.item))
				return true
			})
			m := mount(t, l.source(), "", "--cache-dir", suite.NewDir(t), "--cache-segment=1MiB")
			if log := m.LogText(t); !strings.Contains(log, lie.says) || !strings.Contains(log, "left out") {
				t.Errorf("the log does not say %q:\n%s", lie.says, log)
			}
			names, err := mounttest.ListTree(m.Point)
			must(t, err)
			if !slices.Equal(names, []string{".", "train.bin"}) {
				t.Errorf("the mount lists %q", names)
			}
			if name == "a name twice" { // which of the two is left out is not ours to say
				return
			}
			if err := mounttest.CompareFile(m.Path("train.bin"), data); err != nil {
				t.Errorf("%v\nlog:\n%s", err, m.LogText(t))
			}
		})
	}
}
