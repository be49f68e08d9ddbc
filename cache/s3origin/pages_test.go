package s3origin

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

const onePage = `<?xml version="1.0"?>` + "\n" + `<!-- a page --><ListBucketResult xmlns="x"><IsTruncated>false</IsTruncated>` +
	`<Contents><Key>a&lt;b</Key><Size>1</Size></Contents><x:Contents/><CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes></ListBucketResult>`

func pageOf(text io.Reader) *page {
	return &page{ReadCloser: io.NopCloser(text), pages: fetch.NewPages()}
}

func TestPageCountsElements(t *testing.T) {
	for _, r := range []io.Reader{strings.NewReader(onePage), iotest.OneByteReader(strings.NewReader(onePage))} {
		b := pageOf(r)
		if text, err := io.ReadAll(b); err != nil || string(text) != onePage || b.entries != 3 || b.elements != 8 {
			t.Errorf("%d entries of %d elements, %v; want 3 of 8", b.entries, b.elements, err)
		}
	}
	for n := range onePage { // what is cut is for the parser to refuse
		if _, err := io.ReadAll(pageOf(strings.NewReader(onePage[:n]))); err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
}

func TestPagesAreBounded(t *testing.T) {
	entry := "<Contents><Key>" + strings.Repeat("k", 3*fetch.MostName) + "</Key><LastModified/><ETag/><Size/><StorageClass/><ChecksumAlgorithm/>" +
		"<ChecksumType/><Owner><ID/><DisplayName/></Owner><RestoreStatus><IsRestoreInProgress/><RestoreExpiryDate/></RestoreStatus></Contents>"
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"as large as S3's": {"<ListBucketResult>" + strings.Repeat(entry, pageKeys) + "</ListBucketResult>", true},
		"more entries":     {"<ListBucketResult>" + strings.Repeat("<CommonPrefixes/>", mostEntries+1), false},
		"more elements":    {"<ListBucketResult><Contents>" + strings.Repeat("<Grant>", mostElements), false},
		"more bytes":       {"<ListBucketResult>" + strings.Repeat(" ", mostPage), false},
		"another document": {"<html><body>", false},
	} {
		if _, err := io.ReadAll(pageOf(strings.NewReader(c.text))); (err == nil) != c.ok || (!c.ok && !errors.Is(err, fs.ErrInvalid)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzPage compares with Go's parser: no element that this one sees may be missed.
func FuzzPage(f *testing.F) {
	f.Add([]byte(onePage))
	f.Add([]byte("<ListBucketResult><a:Contents a='>'/><![CDATA[<Contents>]]></ListBucketResult>"))
	f.Add([]byte("<ListBucketResult><" + strings.Repeat("n", 40) + ":Contents></ListBucketResult>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b := pageOf(strings.NewReader(string(text)))
		dec := xml.NewDecoder(b)
		elements, entries := 0, 0
		for {
			tok, err := dec.Token()
			if err != nil {
				break
			}
			if start, ok := tok.(xml.StartElement); ok {
				if elements++; start.Name.Local == "Contents" || start.Name.Local == "CommonPrefixes" {
					entries++
				}
				// Directives may have elements in them, which are none.
				if elements == 1 && start.Name.Local != "ListBucketResult" && !bytes.Contains(text, []byte("<!")) {
					t.Errorf("%q passes as a listing", text)
				}
			}
		}
		if b.elements < elements || b.entries < entries {
			t.Errorf("%d of %d elements and %d of %d entries were seen in %q", b.elements, elements, b.entries, entries, text)
		}
	})
}

// TestNamesThatCannotBe are refused before anything is asked.
func TestNamesThatCannotBe(t *testing.T) {
	for source, want := range map[string]string{
		"s3://ab": "cannot be shorter than 3", "s3://" + strings.Repeat("b", 64): "cannot be longer than 63", "s3://a..b": "invalid characters",
		"s3://bucket/" + strings.Repeat("k", 1025): "at most 1024",
	} {
		s, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(s, fetch.Options{}); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", source, err, want)
		}
	}
}
