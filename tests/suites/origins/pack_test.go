package origins_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// texts are the objects of a crawl, by name: two kinds of documents, a compressed one of several requests, and one that is no text.
func texts(t *testing.T) map[string][]byte {
	t.Helper()
	var lines, zipped bytes.Buffer
	for i := range 8_000 {
		fmt.Fprintf(&lines, "{\"text\": \"document %d, %s\"}\n", i, strings.Repeat("of many words ", i%30))
	}
	z := gzip.NewWriter(&zipped)
	_, err := z.Write(lines.Bytes())
	must(t, errors.Join(err, z.Close()))
	return map[string][]byte{
		"a/first.jsonl": lines.Bytes(), "a/second.jsonl.gz": zipped.Bytes(), "b/third.txt": []byte(strings.Repeat("A line of a book.\n", 1000)),
		"b/model.bin": bytes.Repeat([]byte{0, 1, 0xff, 0xfe}, 1000),
	}
}

// packed runs `hbmfs pack` and returns the files that it has written, or what it says.
func packed(t *testing.T, args ...string) (files map[string]string, said string, err error) {
	t.Helper()
	out := filepath.Join(suite.NewDir(t), "out")
	text, err := suite.Command(t.Context(), append(append([]string{"pack"}, args...), out)...).CombinedOutput()
	entries, readErr := os.ReadDir(out)
	if readErr != nil && !errors.Is(readErr, os.ErrNotExist) {
		t.Fatal(readErr)
	}
	files = map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(out, e.Name()))
		must(t, err)
		files[e.Name()] = string(data)
	}
	return files, string(text), err
}

// A bucket is packed to the same bytes as the same files of a directory, over a server that fails now and then, at once and in parts.
func TestPackOfABucket(t *testing.T) {
	servers.NeedS3(t)
	bucket, local := s3.Bucket(t), suite.NewDir(t)
	for name, data := range texts(t) {
		s3.Put(t, bucket, "crawl/"+name, data)
		path := filepath.Join(local, filepath.FromSlash(name))
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, data, 0o644))
	}
	want, said, err := packed(t, "--to", "npy", local)
	if err != nil || len(want) != 2 {
		t.Fatalf("the directory: %v, %d files\n%s", err, len(want), said)
	}
	p := sitetest.NewProxy(t, s3.Socket)
	faults := []sitetest.Fault{sitetest.None, sitetest.ServerFail, sitetest.Short, sitetest.None, sitetest.SlowDown, sitetest.Reset}
	p.SetFault(func(number int, _ sitetest.Asked) sitetest.Fault { return faults[number%len(faults)] })
	source := sitetest.S3Source(p, bucket+"/crawl")
	got, said, err := packed(t, "--to", "npy", source)
	if err != nil {
		t.Fatalf("the bucket: %v\n%s", err, said)
	}
	sameFiles(t, "the bucket", got, want)
	if !strings.Contains(said, "model.bin") {
		t.Errorf("it does not say what was left out:\n%s", said)
	}
	var parts []string
	for i := range 3 {
		dir := filepath.Join(suite.NewDir(t), "part")
		out, err := suite.Command(t.Context(), "pack", "--to", "npy", "--part", fmt.Sprintf("%d/3", i), source, dir).CombinedOutput()
		if err != nil {
			t.Fatalf("part %d: %v\n%s", i, err, out)
		}
		parts = append(parts, dir)
	}
	joined := filepath.Join(suite.NewDir(t), "out")
	if out, err := suite.Command(t.Context(), append([]string{"pack", "--join", joined}, parts...)...).CombinedOutput(); err != nil {
		t.Fatalf("join: %v\n%s", err, out)
	}
	for name, data := range want {
		if got, err := os.ReadFile(filepath.Join(joined, name)); err != nil || string(got) != data {
			t.Errorf("joined: %s is another, %v", name, err)
		}
	}
}

func sameFiles(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d files, want %d", what, len(got), len(want))
	}
	for name, data := range want {
		if got[name] != data {
			t.Errorf("%s: %s is another: %d bytes, want %d", what, name, len(got[name]), len(data))
		}
	}
}

// An object that changes while it is packed, credentials that are refused and a place where nothing is: a sentence, and nothing is left.
func TestPackOfABucketFails(t *testing.T) {
	servers.NeedS3(t)
	bucket := s3.Bucket(t)
	for name, data := range texts(t) {
		s3.Put(t, bucket, name, data)
	}
	refused := func(what string, says []string, args ...string) {
		t.Helper()
		files, said, err := packed(t, args...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || len(files) > 0 {
			t.Errorf("%s: %v, %d files are left", what, err, len(files))
		}
		for _, text := range says {
			if !strings.Contains(said, text) {
				t.Errorf("%s: it does not say %q:\n%s", what, text, said)
			}
		}
	}
	p := sitetest.NewProxy(t, s3.Socket)
	var once atomic.Bool
	p.SetAnswer(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "third.txt") && r.Method == http.MethodGet && !once.Swap(true) {
			s3.Put(t, bucket, "b/third.txt", []byte("another book\n"))
		}
		return false
	})
	refused("a changed object", []string{"third.txt", "changed"}, sitetest.S3Source(p, bucket))
	refused("nothing there", []string{"no object is there"}, sitetest.S3Source(p, bucket+"/nothing"))
	refused("a binary by name", []string{"model.bin"}, sitetest.S3Source(p, bucket+"/b/model.bin"))
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	refused("a wrong secret", []string{"check the credentials"}, sitetest.S3Source(p, bucket))
}
