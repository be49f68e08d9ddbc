package s3origin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// keyedStore is a bucket with one object, for whoever has the key of the moment.
type keyedStore struct {
	key     atomic.Value // string
	answer  atomic.Value // string: the code by which others are refused
	refused atomic.Int64
	before  atomic.Value // func(): what happens before the next request is answered
}

func (s *keyedStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if do, ok := s.before.Swap(func() {}).(func()); ok {
		do()
	}
	if !strings.Contains(r.Header.Get("Authorization"), "Credential="+s.key.Load().(string)+"/") {
		s.refused.Add(1)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>no</Message></Error>", s.answer.Load())
		return
	}
	switch {
	case r.URL.Query().Has("list-type"):
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprint(w, `<ListBucketResult><Name>bucket</Name><KeyCount>1</KeyCount><Contents><Key>shard</Key><Size>4</Size><ETag>"v1"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>`)
	case r.Method == http.MethodGet && r.URL.Path == "/bucket/shard":
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Content-Range", "bytes 0-3/4")
		w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		w.WriteHeader(http.StatusPartialContent)
		fmt.Fprint(w, "data")
	default:
		http.NotFound(w, r)
	}
}

// rotate makes another key the one that works.
func (s *keyedStore) rotate(t *testing.T, file, key string) {
	writeKeys(t, file, key)
	s.key.Store(key)
}

func writeKeys(t *testing.T, file, key string) {
	text := fmt.Sprintf("[default]\naws_access_key_id = `%s`\naws_secret_access_key = `pass#word`\n", key)
	if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
		t.Error(err)
	}
}

// TestRotatedCredentials replaces the key that the store takes while objects are read, with every answer that stores give
// to the old one.
func TestRotatedCredentials(t *testing.T) {
	for _, code := range []string{"InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"} {
		t.Run(code, func(t *testing.T) {
			o, store, file := openKeyed(t, code, fetch.Options{Patience: time.Minute})
			l, err := o.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			read := func() error {
				p := make([]byte, 4)
				n, err := o.ReadAt(t.Context(), l.Objects[0], p, 0)
				if err == nil && string(p[:n]) != "data" {
					return fmt.Errorf("read %q", p[:n])
				}
				return err
			}
			store.before.Store(func() { store.rotate(t, file, "second") }) // when a request has been signed
			var readers sync.WaitGroup
			for range 8 {
				readers.Go(func() {
					if err := read(); err != nil {
						t.Error(err)
					}
				})
			}
			readers.Wait()
			if store.refused.Load() == 0 {
				t.Error("nothing was refused")
			}
		})
	}
}

// TestKeysThatComeLater has the store refuse the old key before the new one is known here.
func TestKeysThatComeLater(t *testing.T) {
	o, store, file := openKeyed(t, "SignatureDoesNotMatch", fetch.Options{Patience: time.Minute})
	l, err := o.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	store.key.Store("second")
	done := make(chan error, 1)
	go func() {
		_, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 4), 0)
		done <- err
	}()
	for end := time.Now().Add(time.Minute); store.refused.Load() == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	writeKeys(t, file, "second")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestKeysThatNeverWorked are an error at once.
func TestKeysThatNeverWorked(t *testing.T) {
	o, store, _ := openKeyed(t, "InvalidAccessKeyId", fetch.Options{Patience: time.Minute})
	store.key.Store("another")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := o.List(ctx); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v, want a refusal", err)
	}
}

// TestDamagedFilesStaySecret has a file of keys written anew and wrongly. Neither notices nor the read's error show a line of it, and the
// read goes on once the file is mended.
func TestDamagedFilesStaySecret(t *testing.T) {
	for name, text := range map[string]string{
		"no delimiter":    "[default]\naws_access_key_id = second\nhunter2\n",
		"an open section": "[default hunter2\n",
		"no key's name":   "[default]\n= hunter2\n",
		"half a pair":     "[default]\naws_secret_access_key = hunter2\n",
	} {
		t.Run(name, func(t *testing.T) {
			told := make(chan error, 1000)
			o, store, file := openKeyed(t, "InvalidAccessKeyId", fetch.Options{Patience: time.Hour, Retrying: func(err error) { told <- err }})
			l, err := o.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			store.key.Store("second")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := o.ReadAt(ctx, l.Objects[0], make([]byte, 4), 0)
				done <- err
			}()
			for says := ""; !strings.Contains(says, file); {
				select {
				case err := <-told:
					says = err.Error()
				case err := <-done:
					t.Fatalf("the read ended: %v", err)
				}
				if strings.Contains(says, "hunter2") {
					t.Fatalf("a secret is shown: %s", says)
				}
			}
			writeKeys(t, file, "second")
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func openKeyed(t *testing.T, code string, opt fetch.Options) (*Bucket, *keyedStore, string) {
	store := &keyedStore{}
	store.answer.Store(code)
	file := filepath.Join(t.TempDir(), "credentials")
	store.rotate(t, file, "first")
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	server := httptest.NewServer(store)
	t.Cleanup(server.Close)
	s, err := Parse("s3://bucket?region=us-east-1&endpoint=" + server.URL)
	if err != nil {
		t.Fatal(err)
	}
	o, err := Open(s, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o, store, file
}
