package drain

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// deed is what a server does to a request.
type deed func(op, key string, w http.ResponseWriter, r *http.Request) (handled bool, after func(http.ResponseWriter))

// first has a deed done to the first so many requests of an operation, 0 for all.
func first(n int64, op string, do deed) deed {
	var seen atomic.Int64
	return func(is, key string, w http.ResponseWriter, r *http.Request) (bool, func(http.ResponseWriter)) {
		if is != op || !strings.HasPrefix(key, "run/step-1/") || n > 0 && seen.Add(1) > n {
			return false, nil
		}
		return do(is, key, w, r)
	}
}

func answer(status int, code string) deed {
	return func(_, _ string, w http.ResponseWriter, r *http.Request) (bool, func(http.ResponseWriter)) {
		_, _ = io.Copy(io.Discard, r.Body)
		fail(w, status, code)
		return true, nil
	}
}

// cut breaks the connection, after the request was carried out or instead.
func cut(after bool) deed {
	return func(_, _ string, _ http.ResponseWriter, _ *http.Request) (bool, func(http.ResponseWriter)) {
		if after {
			return false, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
		}
		panic(http.ErrAbortHandler)
	}
}

// header changes a header of the answer.
func (s *store) header(name, value string) deed {
	return func(op, key string, w http.ResponseWriter, r *http.Request) (bool, func(http.ResponseWriter)) {
		rec := httptest.NewRecorder()
		s.serve(rec, r, op, key)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		if w.Header().Get(name) != "" {
			w.Header().Set(name, value)
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
		return true, nil
	}
}

// body changes the text of the answer.
func (s *store) body(from, to string) deed {
	return func(op, key string, w http.ResponseWriter, r *http.Request) (bool, func(http.ResponseWriter)) {
		rec := httptest.NewRecorder()
		s.serve(rec, r, op, key)
		w.Header().Set("Content-Type", "application/xml")
		_, _ = io.WriteString(w, strings.ReplaceAll(rec.Body.String(), from, to))
		return true, nil
	}
}

func hang(_, _ string, _ http.ResponseWriter, r *http.Request) (bool, func(http.ResponseWriter)) {
	select {
	case <-r.Context().Done():
	case <-time.After(3 * time.Second):
	}
	panic(http.ErrAbortHandler)
}

func TestFaults(t *testing.T) {
	const wrong = `"00000000000000000000000000000000"`
	sizes := map[string]int{"empty": 0, "small": 1000, "a/b/more": checkpoint.Chunk + 1, "big": 8*mib + 17} // which has two parts
	for _, c := range []struct {
		name string
		do   func(s *store) deed
		says string // why it fails; empty: it becomes remote
	}{
		{"busy at parts", func(*store) deed { return first(5, "part", answer(503, "SlowDown")) }, ""},
		{"an error without a code", func(*store) deed { return first(3, "put", answer(500, "")) }, ""},
		{"bytes lost on the way", func(*store) deed { return first(2, "part", answer(400, "BadDigest")) }, ""},
		{"connections cut", func(*store) deed { return first(3, "part", cut(false)) }, ""},
		{"the answer to a part is lost", func(*store) deed { return first(1, "part", cut(true)) }, ""},
		{"the answer to an object is lost", func(*store) deed { return first(1, "put", cut(true)) }, ""},
		{"the answer to complete is lost", func(*store) deed { return first(1, "complete", cut(true)) }, ""},
		{"the answer to begin is lost", func(*store) deed { return first(1, "begin", cut(true)) }, ""},
		{"a part hangs", func(*store) deed { return first(1, "part", hang) }, ""},
		{"a listing hangs", func(*store) deed { return first(1, "list", hang) }, ""},
		{"an error in an answer of 200", func(*store) deed {
			return first(1, "complete", func(_, _ string, w http.ResponseWriter, _ *http.Request) (bool, func(http.ResponseWriter)) {
				reply(w, "")
				return true, nil
			})
		}, ""},
		{"an upload is gone", func(*store) deed { return first(1, "part", answer(404, "NoSuchUpload")) }, ""},
		{"uploads are always gone", func(*store) deed { return first(0, "part", answer(404, "NoSuchUpload")) }, "the multipart upload is gone"},
		{"a wrong ETag of a part", func(s *store) deed { return first(1, "part", s.header("ETag", wrong)) }, ""},
		{"wrong ETags of all parts", func(s *store) deed { return first(0, "part", s.header("ETag", wrong)) }, "does not take the parts"},
		{"a wrong ETag of an object", func(s *store) deed { return first(1, "put", s.header("ETag", wrong)) }, ""},
		{"wrong ETags of all listings", func(s *store) deed { return first(0, "put", s.header("ETag", wrong)) }, ""},
		{"a wrong checksum", func(s *store) deed { return first(1, "part", s.header("X-Amz-Checksum-Crc32c", "AAAAAA==")) }, ""},
		{"wrong checksums", func(s *store) deed { return first(0, "part", s.header("X-Amz-Checksum-Crc32c", "AAAAAA==")) }, "it has bytes of CRC-32C AAAAAA=="},
		{"a wrong checksum of an object", func(s *store) deed { return first(0, "complete", s.body("-2</ChecksumCRC32C>", "-3</ChecksumCRC32C>")) }, "which is not the file's"},
		{"ETags that say nothing", func(s *store) deed {
			s.noSums = true
			return first(0, "part", s.header("ETag", `"opaque"`))
		}, "what it stores cannot be compared"},
		{"a read-only bucket", func(*store) deed { return first(0, "begin", answer(403, "AccessDenied")) }, "their right to s3:PutObject"},
		{"a bucket over its quota", func(*store) deed { return first(3, "part", answer(403, "QuotaExceeded")) }, ""},
		{"a full store", func(*store) deed { return first(4, "part", answer(507, "XMinioStorageFull")) }, ""},
		{"no bucket", func(*store) deed { return first(0, "begin", answer(404, "NoSuchBucket")) }, "make it, or name another"},
		{"a manifest that is not taken", func(*store) deed {
			return func(op, key string, w http.ResponseWriter, r *http.Request) (bool, func(http.ResponseWriter)) {
				if op == "put" && strings.HasSuffix(key, checkpoint.ManifestName) {
					return answer(403, "AccessDenied")(op, key, w, r)
				}
				return false, nil
			}
		}, "store the manifest"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, dir := newStore(t), t.TempDir()
			publish(t, dir, "step-1", checkpoint.Part{Of: 1}, sizes)
			s.before = c.do(s)
			opt := fast()
			if strings.Contains(c.name, "hangs") {
				opt.stall = time.Second
			}
			got := once(t, dir, s.url("run"), opt)
			if c.says == "" {
				if got["step-1"] != Remote {
					t.Fatalf("the states are %v", got)
				}
				s.set(func() { s.before = nil })
				compare(t, s, "run/", dir, "step-1", sizes)
				return
			}
			if !strings.HasPrefix(got["step-1"], "failed: ") || !strings.Contains(got["step-1"], c.says) {
				t.Errorf("the states are %v, and should say %q", got, c.says)
			}
			s.set(func() { s.before = nil })
			for _, key := range s.keys() {
				if strings.HasSuffix(key, checkpoint.ManifestName) {
					t.Errorf("%s is there", key)
				}
			}
			if got = once(t, dir, s.url("run"), fast()); got["step-1"] != Remote { // somebody has mended it
				t.Fatalf("mended, the states are %v", got)
			}
			compare(t, s, "run/", dir, "step-1", sizes)
		})
	}
}

// TestGone has a store that never answers.
func TestGone(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	publish(t, dir, "step-1", checkpoint.Part{Of: 1}, usual())
	s.Close()
	opt := fast()
	opt.Patience = 200 * time.Millisecond
	d := open(t, dir, s.url("run"), opt)
	if err := d.Once(t.Context()); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the error is %v", err)
	}
}

// TestRefusedToBegin: a checkpoint that must not be sent has failed for good, with the reason, and others are sent.
func TestRefusedToBegin(t *testing.T) {
	s, dir, ended := newStore(t), t.TempDir(), 0
	for _, name := range []string{"a", "b", "c"} {
		publish(t, dir, name, checkpoint.Part{Of: 1}, map[string]int{"file": 10})
	}
	opt := fast()
	opt.Begin = func(name string) (func(), error) {
		if name == "b" {
			return nil, fmt.Errorf("it ends daemons: %w", unix.EIO)
		}
		return func() { ended++ }, nil
	}
	got := once(t, dir, s.url("run"), opt)
	if got["a"] != Remote || got["c"] != Remote || !strings.HasPrefix(got["b"], Failed) || !strings.Contains(got["b"], "it ends daemons") {
		t.Errorf("the states are %v", got)
	}
	if ended != 2 {
		t.Errorf("%d have ended", ended)
	}
}
