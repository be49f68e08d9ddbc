package listings_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// lister is an S3 server with a bucket of one object, train.bin, that lists more.
func lister(t *testing.T, data []byte, more string) *httptest.Server {
	const tag = `"e1"`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("list-type"):
			w.Header().Set("Content-Type", "application/xml")
			fmt.Fprintf(w, `<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>%s%s</ListBucketResult>`,
				listedKey("train.bin", fmt.Sprint(len(data)), tag), more)
		case r.URL.Query().Has("location"):
			fmt.Fprint(w, `<?xml version="1.0"?><LocationConstraint></LocationConstraint>`)
		case strings.HasSuffix(r.URL.Path, "/train.bin"):
			w.Header().Set("ETag", tag)
			http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(data))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func listedKey(name, size, tag string) string {
	return fmt.Sprintf("<Contents><Key>%s</Key><Size>%s</Size><ETag>%s</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>", name, size, tag)
}

// TestListingsOfLies mounts what lists objects that cannot be: the mount serves the others, and the log names each.
func TestListingsOfLies(t *testing.T) {
	blackbox.NeedFUSE(t)
	data := origintest.Data(1<<16, 1)
	for name, lie := range map[string]struct{ more, says string }{
		"a negative size":     {listedKey("z.bin", "-1", "e"), "less than nothing"},
		"the least size":      {listedKey("a.bin", "-9223372036854775808", "e"), "less than nothing"},
		"too large a size":    {listedKey("z.bin", "9223372036854775807", "e"), "more than a mount shows"},
		"no version":          {listedKey("z.bin", "1", ""), "ETag"},
		"a name that leaves":  {listedKey("../z.bin", "1", "e"), "no path of a file"},
		"a name of dots":      {listedKey("a/./z.bin", "1", "e"), "no path of a file"},
		"a name as directory": {listedKey("train.bin/z", "1", "e"), "a directory of others"},
		"a name twice":        {listedKey("train.bin", "5", "z"), "listed twice"},
		"a long name":         {listedKey(strings.Repeat("n", 1000), "1", "e"), "no path of a file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := lister(t, data, lie.more)
			m := mount(t, "s3://bucket?endpoint="+server.URL, "--cache-dir", suite.NewDir(t), "--cache-segment=1MiB")
			if log := m.LogText(t); !strings.Contains(log, lie.says) || !strings.Contains(log, "left out") {
				t.Errorf("the log does not say %q:\n%s", lie.says, log)
			}
			if name == "a name as directory" {
				if _, err := os.Stat(m.Path("train.bin", "z")); err != nil {
					t.Error(err)
				}
				return
			}
			names, err := mounttest.ListTree(m.Point)
			must(t, err)
			if !slices.Equal(names, []string{".", "train.bin"}) {
				t.Errorf("the mount lists %q", names)
			}
			if err := mounttest.CompareFile(m.Path("train.bin"), data); err != nil {
				t.Errorf("%v\nlog:\n%s", err, m.LogText(t))
			}
			if _, err := os.Stat(m.Path(".hbmfs", "views")); err != nil {
				t.Error(err)
			}
		})
	}
}
