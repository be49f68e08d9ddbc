package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// liar is an origin whose answers a test changes.
type liar struct {
	data []byte
	lie  func(number int, a *Answer, off, n int64)

	requests int
}

func (l *liar) Get(_ context.Context, o *layout.Object, off, n int64) (*Answer, error) {
	l.requests++
	a := answerOf(o, off, n, io.NopCloser(bytes.NewReader(l.data[off:off+n])))
	l.lie(l.requests, a, off, n)
	return a, nil
}

// become gives an answer another body, and no length.
func become(a *Answer, body []byte) {
	a.Body, a.ContentLength = io.NopCloser(bytes.NewReader(body)), -1
}

func set(name, value string) func(*Answer, int64, int64) {
	return func(a *Answer, _, _ int64) { a.Header.Set(name, value) }
}

// TestLies has each answer contradict what was asked for. No byte of such an answer is taken: it is an error of the right
// class, and when the server is honest again, all bytes come.
func TestLies(t *testing.T) {
	data := randomBytes(1 << 20)
	gzip := randomBytes(1 << 19)
	for name, c := range map[string]struct {
		lie  func(a *Answer, off, n int64)
		want error
	}{
		"gzip, its length": {func(a *Answer, _, _ int64) {
			a.Header.Set("Content-Encoding", "gzip")
			become(a, gzip)
			a.ContentLength = int64(len(gzip))
		}, fs.ErrInvalid},
		"gzip, no length":        {func(a *Answer, _, _ int64) { a.Header.Set("Content-Encoding", "gzip"); become(a, gzip) }, fs.ErrInvalid},
		"gzip, the asked length": {set("Content-Encoding", "gzip"), fs.ErrInvalid},
		"two encodings":          {func(a *Answer, _, _ int64) { a.Header["Content-Encoding"] = []string{"identity", "br"} }, fs.ErrInvalid},
		"other range":            {set("Content-Range", "bytes 0-99/1048576"), ErrLie},
		"range as prefix":        {func(a *Answer, _, _ int64) { a.Header["Content-Range"][0] += "0" }, cache.ErrChanged},
		"other total":            {set("Content-Range", "bytes 100-1048475/2097152"), cache.ErrChanged},
		"no total":               {set("Content-Range", "bytes 100-1048475/*"), ErrLie},
		"two ranges": {func(a *Answer, _, _ int64) {
			h := a.Header["Content-Range"]
			a.Header["Content-Range"] = append(h, h...)
		}, ErrLie},
		"no range":       {func(a *Answer, _, _ int64) { a.Header.Del("Content-Range") }, ErrLie},
		"several ranges": {set("Content-Type", "multipart/byteranges; boundary=x"), ErrLie},
		"fewer bytes":    {func(a *Answer, _, n int64) { a.ContentLength = n - 1 }, ErrLie},
		"more bytes":     {func(a *Answer, _, n int64) { a.ContentLength = n + 1 }, ErrLie},
		"more bytes than it says": {func(a *Answer, _, _ int64) {
			become(a, append(bytes.Clone(data[:1<<20-200]), 0))
		}, ErrLie},
		"fewer bytes than asked, without a length": {func(a *Answer, _, n int64) { become(a, gzip[:n/3]) }, ErrShort},
		"other version":        {func(a *Answer, _, _ int64) { a.Version = `"2"` }, cache.ErrChanged},
		"no version":           {func(a *Answer, _, _ int64) { a.Version = "" }, ErrLie},
		"the whole for a part": {func(a *Answer, _, _ int64) { a.StatusCode = http.StatusOK; a.Header.Del("Content-Range") }, fs.ErrInvalid},
		"accepted":             {func(a *Answer, _, _ int64) { a.StatusCode = http.StatusAccepted }, ErrLie},
		"no content":           {func(a *Answer, _, _ int64) { a.StatusCode = http.StatusNoContent; become(a, nil) }, ErrLie},
	} {
		inFakeTime(t, name, func(t *testing.T) {
			l := &liar{data: data, lie: func(_ int, a *Answer, off, n int64) { c.lie(a, off, n) }}
			o := &layout.Object{Name: "shard", Size: int64(len(data)), Version: `"1"`}
			client := New(l, Options{Patience: 50 * time.Millisecond, Stall: time.Minute})
			got, err := read(t, client, o, 100, 1<<20-200)
			if len(got) > 0 || !errors.Is(err, c.want) {
				t.Errorf("%d bytes, %v; want none, and %v", len(got), err, c.want)
			}
			l.lie, l.requests = func(number int, a *Answer, off, n int64) {
				if number == 1 {
					c.lie(a, off, n)
				}
			}, 0
			got, err = read(t, New(l, Options{}), o, 100, 1<<20-200)
			if final(c.want) {
				got, err = read(t, client, o, 100, 1<<20-200)
			}
			if err != nil || !bytes.Equal(got, data[100:1<<20-100]) {
				t.Errorf("after one such answer: %d bytes, %v", len(got), err)
			}
		})
	}
}

// TestWholeObjects come by an answer of 200, where it says their length.
func TestWholeObjects(t *testing.T) {
	data := randomBytes(1000)
	o := &layout.Object{Name: "shard", Size: 1000}
	for length, want := range map[int64]error{1000: nil, -1: fs.ErrInvalid, 999: ErrLie, 1001: ErrLie} {
		l := &liar{data: data, lie: func(_ int, a *Answer, _, _ int64) {
			a.StatusCode, a.ContentLength, a.Header = http.StatusOK, length, http.Header{"Content-Length": {strconv.FormatInt(length, 10)}}
		}}
		got, err := read(t, New(l, Options{Patience: 50 * time.Millisecond, Stall: time.Minute}), o, 0, 1000)
		if !errors.Is(err, want) || (want == nil && !bytes.Equal(got, data)) || (want != nil && len(got) > 0) {
			t.Errorf("length %d: %d bytes, %v; want %v", length, len(got), err, want)
		}
	}
}

// TestBodiesWithoutALength come as a whole, or not at all.
func TestBodiesWithoutALength(t *testing.T) {
	data := randomBytes(3*blockSize + 5)
	o := &layout.Object{Name: "shard", Size: int64(len(data))}
	for name, c := range map[string]struct {
		tail []byte
		cut  int
		want error
	}{"as asked": {}, "too long": {tail: []byte{1}, want: ErrLie}, "too short": {cut: 1, want: ErrShort}} {
		l := &liar{data: data, lie: func(_ int, a *Answer, _, _ int64) { become(a, append(bytes.Clone(data[:len(data)-c.cut]), c.tail...)) }}
		got, err := read(t, New(l, Options{Patience: 50 * time.Millisecond, Stall: time.Minute}), o, 0, o.Size)
		if !errors.Is(err, c.want) || (c.want == nil && !bytes.Equal(got, data)) || (c.want != nil && len(got) > 0) {
			t.Errorf("%s: %d bytes, %v; want %v", name, len(got), err, c.want)
		}
	}
}
