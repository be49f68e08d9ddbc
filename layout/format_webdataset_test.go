package layout

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// tarOf writes an archive of the headers; a header's Linkname is the data of a regular file.
func tarOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		data := ""
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			data, h.Linkname = h.Linkname, ""
			h.Size = int64(len(data))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tarred is what archive/tar, reading from start to end, finds in an archive.
func tarred(t testing.TB, archive []byte) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if out[h.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestWebdatasetGolden(t *testing.T) {
	for _, dataset := range []string{"webdataset", "tar"} {
		f := golden(t, dataset)
		v, s := oneSet(t, f)
		if want := expected(t, dataset); s.Format != want.Format || s.Samples() != *want.Samples || len(s.Shards) != want.Shards {
			t.Errorf("%s: format %s, %d samples, %d shards; want %+v", dataset, s.Format, s.Samples(), len(s.Shards), want)
		}
		for name, archive := range f {
			got, want := entries(t, v, "members/"+name), tarred(t, archive)
			if len(got) != len(want) || len(got) == 0 {
				t.Errorf("%s: %d members, want %d", name, len(got), len(want))
			}
			for member, data := range want {
				if !bytes.Equal(got[member], data) {
					t.Errorf("%s: member %s has %d bytes, want %d", name, member, len(got[member]), len(data))
				}
			}
		}
	}
}

func TestWebdatasetHostileMembers(t *testing.T) {
	reg := func(name, data string) tar.Header { return tar.Header{Name: name, Linkname: data, Mode: 0o644} }
	deep := strings.Repeat("d/", 64) + "x.txt"
	archive := tarOf(t,
		reg("a.txt", "first"), reg("../../etc/passwd", "x"), reg("/etc/passwd", "x"), reg("./b//c.txt", "bc"), reg("a.txt", "second"),
		reg("b", "file"), reg("a.txt/d", "below a file"), reg(deep, "x"), reg(strings.Repeat("n", 256), "x"), reg(".", "x"),
		tar.Header{Name: "l", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}, tar.Header{Name: "h", Linkname: "a.txt", Typeflag: tar.TypeLink},
		tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, tar.Header{Name: "empty/", Typeflag: tar.TypeDir},
		reg("last.json", "{}"),
	)
	v := index(t, files{"x.tar": archive, "y.tar": tarOf(t, reg("z.txt", "z"))})
	if err := v.Sets[0].Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`1 members are not shown: the name leaves its directory ("../../etc/passwd" first)`,
		`1 members are not shown: the name is absolute ("/etc/passwd" first)`,
		`1 members are not shown: another member later has the same name ("a.txt" first)`,
		`1 members are not shown: the name is a directory's too ("b" first)`,
		`1 members are not shown: its directory is a file ("a.txt/d" first)`,
		`1 members are not shown: the name has more than 4095 bytes or 64 parts`,
		`1 members are not shown: a part of the name has more than 255 bytes`,
		`1 members are not shown: the name is empty`,
		`2 members are not shown: a link is no data ("l" first)`,
		`1 members are not shown: a device or pipe is no data ("null" first)`,
	} {
		if !slices.ContainsFunc(v.Problems(), func(p Problem) bool { return p.Object == "x.tar" && strings.Contains(p.Detail, want) }) {
			t.Errorf("no problem says %q", want)
		}
	}
	if n := len(v.Problems()); n != 10 {
		t.Errorf("%d problems: %v", n, v.Problems())
	}
	got := entries(t, v, "members/x.tar")
	if len(got) != 3 || string(got["a.txt"]) != "second" || string(got["b/c.txt"]) != "bc" || string(got["last.json"]) != "{}" {
		t.Errorf("members %q", got)
	}
}

func TestWebdatasetSparseMembersAreNotShown(t *testing.T) {
	// archive/tar reads sparse members and does not write them: the records of one, written as any others.
	archive := tarOf(t, tar.Header{Name: "whole.txt", Linkname: "whole"}, tar.Header{Name: "holes.bin", Linkname: "data"})
	at := bytes.Index(archive, []byte("holes.bin"))
	header := archive[at : at+tarBlock]
	header[156] = tar.TypeGNUSparse
	copy(header[257:], "ustar  \x00")
	copy(header[386:], "00000000000\x0000000000004\x00")
	copy(header[483:], "00000000004\x00")
	fixChecksum(header)
	v := index(t, files{"x.tar": archive})
	if err := v.Sets[0].Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, v, "x.tar: a sparse member does not lie in the archive as it is")
	if got := entries(t, v, "members/x.tar"); len(got) != 1 || string(got["whole.txt"]) != "whole" {
		t.Errorf("members %q", got)
	}
}

func fixChecksum(header []byte) {
	copy(header[148:], "        ")
	sum := 0
	for _, c := range header {
		sum += int(c)
	}
	copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
}

func TestWebdatasetLyingSize(t *testing.T) {
	for want, size := range map[string]string{
		"the archive ends after": "77777777777\x00",
		"cannot be read":         "\x80\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00",
	} {
		archive := tarOf(t, tar.Header{Name: "a.txt", Linkname: "a"}, tar.Header{Name: "b.txt", Linkname: "b"})
		copy(archive[2*tarBlock+124:], size)
		fixChecksum(archive[2*tarBlock : 3*tarBlock])
		v := index(t, files{"x.tar": archive, "y.tar": tarOf(t, tar.Header{Name: "z.txt", Linkname: "z"})})
		if err := v.Sets[0].Check(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		wantProblems(t, v, "x.tar: "+want)
		if _, err := v.Views[0].Entries(t.Context()); err == nil {
			t.Error("a damaged archive shows members")
		}
		if got := entries(t, v, "members/y.tar"); string(got["z.txt"]) != "z" {
			t.Errorf("y.tar shows %q", got)
		}
	}
}

func TestWebdatasetWithoutItsEnd(t *testing.T) {
	archive := tarOf(t, tar.Header{Name: "a.txt", Linkname: "a"})
	v := index(t, files{"x.tar": archive[:2*tarBlock]})
	if err := v.Sets[0].Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, v, "x.tar: the archive ends without two blocks of zeros")
}

func TestWebdatasetCompressed(t *testing.T) {
	archive := tarOf(t, tar.Header{Name: "a.txt", Linkname: "a"})
	var gz, other bytes.Buffer
	for w, data := range map[*bytes.Buffer][]byte{&gz: archive, &other: bytes.Repeat([]byte("no tar"), 200)} {
		z := gzip.NewWriter(w)
		if _, err := z.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	v, s := oneSet(t, files{"a.tar.gz": gz.Bytes(), "b.tar.zst": z.EncodeAll(archive, nil), "c.txt.gz": other.Bytes()})
	if _, err := v.Views[0].Entries(t.Context()); err == nil || !strings.Contains(err.Error(), "compressed by zstd") {
		t.Errorf("fields of compressed archives: %v", err)
	}
	if len(s.Shards) != 2 || len(v.Views) != 1 || len(s.Notes) != 2 || !strings.Contains(s.Notes[0], "1 archives are compressed by gzip") {
		t.Errorf("%d shards, %d views, notes %q", len(s.Shards), len(v.Views), s.Notes)
	}
}

func TestWebdatasetSamples(t *testing.T) {
	var headers []tar.Header
	for _, name := range []string{"__meta__/info.json", "a/1.jpg", "a/1.seg.png", "b/1.jpg", "readme", ".hidden", "a/1.cls", "a.b/2.jpg"} {
		headers = append(headers, tar.Header{Name: name, Linkname: "x"})
	}
	_, s := oneSet(t, files{"train-0.tar": tarOf(t, headers...)})
	if s.Samples() != 4 { // a/1, b/1, a/1 again, a.b/2
		t.Errorf("%d samples, want 4", s.Samples())
	}
}

// countingOrigin counts the bytes that are read of it.
type countingOrigin struct {
	inline
	bytes int64
}

func (c *countingOrigin) ReadAt(ctx context.Context, o *Object, p []byte, off int64) (int, error) {
	n, err := c.inline.ReadAt(ctx, o, p, off)
	c.bytes += int64(n)
	return n, err
}

func TestWebdatasetReadsNoData(t *testing.T) {
	archive := tarOf(t, tar.Header{Name: "a.bin", Linkname: strings.Repeat("a", 1<<20)}, tar.Header{Name: "b.bin", Linkname: strings.Repeat("b", 1<<20)})
	counted := &countingOrigin{inline: archive}
	o := &Object{Name: "x.tar", Size: int64(len(archive)), Origin: counted}
	v, err := Index(t.Context(), []*Object{o}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if counted.bytes != headSize {
		t.Errorf("indexing read %d bytes, want %d", counted.bytes, headSize)
	}
	if got := entries(t, v, "members/x.tar"); len(got) != 2 {
		t.Errorf("%d members", len(got))
	}
	counted.bytes = 0
	if _, err := v.Views[0].Entries(t.Context()); err != nil || counted.bytes > 80<<10 {
		t.Errorf("listing read %d bytes: %v", counted.bytes, err)
	}
}

func TestWebdatasetTruncation(t *testing.T) {
	sweep(t, files{"x.tar": tarOf(t, tar.Header{Name: "a.txt", Linkname: "a", ModTime: time.Unix(1, 0)}, tar.Header{Name: strings.Repeat("n", 120), Linkname: "b"})}, "x.tar")
}

// FuzzWebdataset writes the members that it finds into a new archive: that must list the same ones.
func FuzzWebdataset(f *testing.F) {
	f.Add(tarOf(f, tar.Header{Name: "a/1.txt", Linkname: "a"}, tar.Header{Name: "../x", Linkname: "b"}))
	f.Add(golden(f, "webdataset")["shard-000000.tar"])
	f.Add(golden(f, "tar")["pax.tar"])
	f.Add(golden(f, "tar")["gnu.tar"])
	f.Fuzz(func(t *testing.T, data []byte) {
		exercise(t, files{"x.tar": data})
		list := func(data []byte) (*Object, *tarListing) {
			o := Bytes("x.tar", data)
			l, err := listTar(t.Context(), o)
			var c *corrupt
			if err != nil && !errors.As(err, &c) {
				t.Fatal(err)
			}
			return o, l
		}
		o, l := list(data)
		if l == nil {
			return
		}
		var headers []tar.Header
		for _, file := range l.files(o) {
			headers = append(headers, tar.Header{Name: file.Name, Linkname: string(readFile(t, file)), Format: tar.FormatGNU})
		}
		o, again := list(tarOf(t, headers...))
		if again == nil || len(again.members) != len(l.members) || !again.ended {
			t.Fatalf("written again: %+v, was %+v", again, l)
		}
		for i, file := range again.files(o) {
			if h := headers[i]; file.Name != h.Name || string(readFile(t, file)) != h.Linkname {
				t.Errorf("member %q became %q", h.Name, file.Name)
			}
		}
	})
}
