package layout

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// walked is the headers of an archive, in words.
func walked(t *testing.T, archive []byte) (out []string, err error) {
	_, err = WalkTar(t.Context(), Bytes("x.tar", archive), func(h *tar.Header, offset int64) error {
		out = append(out, inWords(h, offset))
		return nil
	})
	return out, err
}

// walkedByGo is the same as archive/tar reads it alone, up to the first member that the archive is too short for.
func walkedByGo(archive []byte) (out []string, err error) {
	in := bytes.NewReader(archive)
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		offset := in.Size() - int64(in.Len())
		if err != nil || isRegular(h) && !IsSparse(h) && h.Size > in.Size()-offset {
			return out, fmt.Errorf("cut short, or %w", err)
		}
		out = append(out, inWords(h, offset))
	}
}

func inWords(h *tar.Header, offset int64) string {
	if isRegular(h) && !IsSparse(h) {
		return fmt.Sprintf("%q of %d bytes at %d, %s", h.Name, h.Size, offset, h.ModTime.UTC().Format(time.RFC3339Nano))
	}
	return fmt.Sprintf("%c %q", h.Typeflag, h.Name)
}

// FuzzTarHeaders compares the headers of an archive with those that archive/tar finds.
func FuzzTarHeaders(f *testing.F) {
	long := strings.Repeat("n", 90)
	all := []tar.Header{
		{Name: "a.txt", Linkname: "a", ModTime: time.Unix(1, 0)}, {Name: "dir/", Typeflag: tar.TypeDir},
		{Name: long + "/" + long, Linkname: strings.Repeat("b", 5000), Uid: 1000, Gid: 1000, Mode: 0o644}, {Name: "naïve.txt", Linkname: "c"},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "a.txt"}, {Name: strings.Repeat(long, 3), Linkname: "d"},
		{Name: "empty"}, {Name: "at", ModTime: time.Unix(1, 5), Format: tar.FormatPAX, Linkname: "e"},
		{Name: "times", ModTime: time.Unix(1, 0), AccessTime: time.Unix(2, 0), Format: tar.FormatGNU, Linkname: "f"}, {Name: "last", Linkname: "g"},
	}
	for _, format := range []tar.Format{tar.FormatUnknown, tar.FormatGNU, tar.FormatPAX} {
		of := slices.Clone(all)
		for i := range of {
			if of[i].Format == tar.FormatUnknown {
				of[i].Format = format
			}
		}
		f.Add(tarOf(f, of...))
	}
	for _, name := range []string{"gnu.tar", "pax.tar"} {
		f.Add(golden(f, "tar")[name])
	}
	for _, change := range []struct {
		at   int
		with string
	}{
		{156, "\x00"}, {156, "7"}, {156, "S"}, {257, "\x00"}, {257, "ustar  \x00"}, {508, "tar\x00"}, {124, "\x80\x00"}, {124, "  1 "}, {124, "1\x00 2"}, {136, "-1"}, {100, "x"},
		{0, "a/"}, {0, "\x00"}, {345, "prefix"}, {148, "9"}, {99, "\xff"}, {136, "8"}, {329, "x"}, {345, strings.Repeat("p", 155) + "q"},
		{345, strings.Repeat("p", 131) + "x" + strings.Repeat("\x00", 31) + "tar\x00"}, {357, "x"},
	} {
		archive := tarOf(f, tar.Header{Name: "a", Linkname: "1"}, tar.Header{Name: "b", Linkname: "2"})
		copy(archive[change.at:], change.with)
		if change.at != 148 {
			fixChecksum(archive[:tarBlock])
		}
		f.Add(archive)
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		summed := bytes.Clone(archive) // else a changed header is seldom more than a wrong checksum
		for at := 0; at+tarBlock <= len(summed); at += tarBlock {
			if string(summed[at+257:at+262]) == "ustar" {
				fixChecksum(summed[at : at+tarBlock])
			}
		}
		for _, archive := range [][]byte{archive, summed} {
			got, err := walked(t, archive)
			want, wrong := walkedByGo(archive)
			if !slices.Equal(got, want) || (err == nil) != (wrong == nil) {
				t.Fatalf("%q, %v, archive/tar finds %q, %v", got, err, want, wrong)
			}
		}
	})
}

// TestTarOfABrokenConnection has an origin whose error wraps io.EOF, as that of a connection does: the archive has not ended there.
func TestTarOfABrokenConnection(t *testing.T) {
	archive := tarOf(t, tar.Header{Name: "a", Linkname: strings.Repeat("1", 2*windowFollowing)}, tar.Header{Name: "b", Linkname: "2"})
	origin := &cut{inline: archive, at: 2 * windowFollowing}
	members := 0
	_, err := WalkTar(t.Context(), &Object{Name: "x.tar", Size: int64(len(archive)), Origin: origin}, func(*tar.Header, int64) error { members++; return nil })
	if err == nil || members != 1 || origin.failed != 1 {
		t.Errorf("%d members, %d reads that failed: %v", members, origin.failed, err)
	}
}

// cut is broken from a place on.
type cut struct {
	inline
	at     int64
	failed int
}

func (c *cut) ReadAt(ctx context.Context, o *Object, p []byte, off int64) (int, error) {
	if off+int64(len(p)) <= c.at {
		return c.inline.ReadAt(ctx, o, p, off)
	}
	c.failed++
	return 0, &url.Error{Op: "Get", URL: "http://host/x.tar", Err: io.EOF}
}

// TestTarPlainHeaders keeps the headers that writers write on the short path.
func TestTarPlainHeaders(t *testing.T) {
	for _, archive := range [][]byte{
		golden(t, "webdataset")["shard-000000.tar"], tarOf(t, tar.Header{Name: "a", Linkname: "1", Format: tar.FormatGNU}),
		tarOf(t, tar.Header{Name: strings.Repeat("n", 90) + "/a", Linkname: "1", Format: tar.FormatUSTAR}),
	} {
		var h, want tar.Header
		r := &windowReader{ctx: t.Context(), o: Bytes("x.tar", archive)}
		if first, err := tar.NewReader(bytes.NewReader(archive)).Next(); err != nil {
			t.Fatal(err)
		} else {
			want = *first
		}
		if !r.plain(&h) || h.Name != want.Name || h.Size != want.Size || r.off != tarBlock {
			t.Errorf("%+v is not read as a plain header: %+v", want, h)
		}
	}
}
