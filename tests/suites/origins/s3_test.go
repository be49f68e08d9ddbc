package origins_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

func openS3(t testing.TB, source string) *s3origin.Bucket {
	t.Helper()
	s, err := s3origin.Parse(source)
	must(t, err)
	o, err := s3origin.Open(s, fetch.Options{})
	must(t, err)
	return o
}

func closeOrigin(t testing.TB, o interface{ Close() error }) {
	t.Helper()
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

func TestS3KeepsTheContract(t *testing.T) {
	servers.NeedS3(t)
	p := sitetest.NewProxy(t, s3.Socket)
	origintest.Run(t, func(t *testing.T) origintest.Fixture {
		bucket := s3.Bucket(t)
		return origintest.Fixture{
			Names: []string{"with space", "ümlaut", "semi;colon", "q?x=1", "hash#1", "plus+and&", "100%", "a%2Fb", "star*(1)'!"},
			Open:  func(t testing.TB) origintest.Subject { return openS3(t, sitetest.S3Source(p, bucket)) },
			Put:   func(t testing.TB, name string, data []byte) { s3.Put(t, bucket, name, data) },
			Remove: func(t testing.TB, name string) {
				must(t, s3.Client.RemoveObject(context.Background(), bucket, name, minio.RemoveObjectOptions{}))
			},
		}
	})
}

// TestS3ListsManyObjects lists 2,500 objects: a directory of several pages, and nested ones.
func TestS3ListsManyObjects(t *testing.T) {
	servers.NeedS3(t)
	bucket := s3.Bucket(t)
	var names []string
	for i := range 2100 {
		names = append(names, fmt.Sprintf("data/flat/%05d.bin", i))
	}
	for i := range 400 {
		names = append(names, fmt.Sprintf("data/nested/%d/%d/%d", i%5, i%20, i))
	}
	s3.Place(t, bucket, append(names, "database/not-below-the-prefix"))

	p := sitetest.NewProxy(t, s3.Socket)
	var listings atomic.Int64
	p.SetAnswer(func(w http.ResponseWriter, r *http.Request) bool {
		if !r.URL.Query().Has("list-type") {
			return false
		}
		if n := listings.Add(1); n%4 != 2 { // every fourth page fails
			return false
		}
		w.WriteHeader(http.StatusInternalServerError)
		return true
	})
	o := openS3(t, sitetest.S3Source(p, bucket+"/data"))
	defer closeOrigin(t, o)
	l, err := o.List(t.Context())
	must(t, err)
	if len(l.Objects) != len(names) || len(l.Problems) != 0 {
		t.Errorf("%d objects and %d problems, want %d and none", len(l.Objects), len(l.Problems), len(names))
	}
	got := map[string]bool{}
	for _, obj := range l.Objects {
		got["data/"+obj.Name] = obj.Size == int64(len("data/"+obj.Name))
	}
	for _, name := range names {
		if !got[name] {
			t.Errorf("%q is not listed, or with another size", name)
		}
	}
	if n := listings.Load(); n < 3+1+1+5+20 || n > 2*(3+1+1+5+20) {
		t.Errorf("%d requests for the listing", n)
	}

	one := openS3(t, sitetest.S3Source(p, bucket+"/data/flat/00007.bin"))
	defer closeOrigin(t, one)
	if l, err := one.List(t.Context()); err != nil || len(l.Objects) != 1 || l.Objects[0].Name != "00007.bin" {
		t.Errorf("one object as a source lists %+v, %v", l, err)
	}
}

// TestS3Refusals wants an answer at once, and one that says what to do.
func TestS3Refusals(t *testing.T) {
	servers.NeedS3(t)
	bucket := s3.Bucket(t)
	s3.Put(t, bucket, "shard", []byte("data"))
	for name, c := range map[string]struct {
		source string
		env    map[string]string
		is     error
		says   []string
	}{
		"wrong secret":   {bucket, map[string]string{"AWS_SECRET_ACCESS_KEY": "wrong"}, fs.ErrPermission, []string{"SignatureDoesNotMatch", "check the credentials"}},
		"unknown key":    {bucket, map[string]string{"AWS_ACCESS_KEY_ID": "nobody"}, fs.ErrPermission, []string{"check the credentials"}},
		"no credentials": {bucket, map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, fs.ErrPermission, []string{"AccessDenied", "no credentials were found"}},
		"missing bucket": {"no-such-bucket", nil, fs.ErrNotExist, []string{`there is no bucket "no-such-bucket"`}},
		"missing prefix": {bucket + "/nothing/here", nil, fs.ErrNotExist, []string{"no object is there"}},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			p := sitetest.NewProxy(t, s3.Socket)
			var requests atomic.Int64
			p.SetAnswer(func(http.ResponseWriter, *http.Request) bool { requests.Add(1); return false })
			o := openS3(t, sitetest.S3Source(p, c.source))
			defer closeOrigin(t, o)
			_, err := o.List(t.Context())
			if !errors.Is(err, c.is) || errors.Is(err, cache.ErrChanged) || errors.Is(err, fetch.ErrUnreachable) {
				t.Errorf("%v, want %v", err, c.is)
			}
			for _, text := range c.says {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("%v does not say %q", err, text)
				}
			}
			if n := requests.Load(); n > 3 {
				t.Errorf("%d requests, although the first was answered for good", n)
			}
		})
	}
}

// TestS3Anonymous reads a bucket that everybody may read, without keys.
func TestS3Anonymous(t *testing.T) {
	servers.NeedS3(t)
	bucket := s3.Bucket(t)
	s3.Put(t, bucket, "dir/shard", []byte("public"))
	must(t, s3.Client.SetBucketPolicy(t.Context(), bucket, fmt.Sprintf(`{"Version": "2012-10-17", "Statement": [
		{"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::%[1]s/*"]},
		{"Effect": "Allow", "Principal": "*", "Action": ["s3:ListBucket"], "Resource": ["arn:aws:s3:::%[1]s"]}]}`, bucket)))
	p := sitetest.NewProxy(t, s3.Socket)
	var signed atomic.Int64
	p.SetAnswer(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "" {
			signed.Add(1)
		}
		return false
	})
	o := openS3(t, sitetest.S3Source(p, bucket)+"&anonymous=true")
	defer closeOrigin(t, o)
	wantShard(t, o, "dir/shard", "public")
	if n := signed.Load(); n != 0 {
		t.Errorf("%d requests were signed", n)
	}
}

// wantShard lists an origin and reads one object.
func wantShard(t *testing.T, o *s3origin.Bucket, name, content string) {
	t.Helper()
	l, err := o.List(t.Context())
	must(t, err)
	if len(l.Objects) != 1 || l.Objects[0].Name != name {
		t.Fatalf("the listing is %+v", l.Objects)
	}
	wantRead(t, o, l, content)
}

func wantRead(t *testing.T, o *s3origin.Bucket, l *cache.Listing, content string) {
	t.Helper()
	buf := make([]byte, len(content))
	if _, err := o.ReadAt(t.Context(), l.Objects[0], buf, 0); err != nil || string(buf) != content {
		t.Errorf("read %q, %v; want %q", buf, err, content)
	}
}

// TestS3ExpiredCredentials has the keys of the shared file expire, when listing and when reading. The file gets new ones.
func TestS3ExpiredCredentials(t *testing.T) {
	servers.NeedS3(t)
	bucket := s3.Bucket(t)
	s3.Put(t, bucket, "shard", []byte("data"))
	file := filepath.Join(suite.NewDir(t), "credentials")
	keys := func(access, secret, token string) {
		text := fmt.Sprintf("[train]\naws_access_key_id = %s\naws_secret_access_key = %s\n", access, secret)
		if token != "" {
			text += "aws_session_token = " + token + "\n"
		}
		if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
			t.Error(err)
		}
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	p := sitetest.NewProxy(t, s3.Socket)
	var expired, refused atomic.Int64
	p.SetAnswer(func(w http.ResponseWriter, r *http.Request) bool {
		if expired.Load() == 0 && !strings.Contains(r.Header.Get("Authorization"), "old-key") {
			return false
		}
		expired.Store(0)
		refused.Add(1)
		keys(sitetest.AccessKey, sitetest.SecretKey, "") // their renewal is in time
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>`)
		return true
	})
	keys("old-key", "old-secret", "old-token")
	o := openS3(t, sitetest.S3Source(p, bucket+"/shard")+"&profile=train") // the first request is a HEAD
	defer closeOrigin(t, o)
	l, err := o.List(t.Context())
	must(t, err)
	if refused.Load() == 0 {
		t.Error("the old keys were not used")
	}
	before := refused.Load()
	expired.Store(1)
	wantRead(t, o, l, "data")
	if refused.Load() != before+1 {
		t.Error("the keys did not expire in the read")
	}
}

// TestS3Unreachable has a server that goes away between the listing and the read, and comes back.
func TestS3Unreachable(t *testing.T) {
	servers.NeedS3(t)
	t.Parallel()
	bucket := s3.Bucket(t)
	s3.Put(t, bucket, "shard", []byte("data"))
	p := sitetest.NewProxy(t, s3.Socket)
	s, err := s3origin.Parse(sitetest.S3Source(p, bucket))
	must(t, err)
	o, err := s3origin.Open(s, fetch.Options{Patience: time.Second, Stall: patience})
	must(t, err)
	defer closeOrigin(t, o)
	l, err := o.List(t.Context())
	must(t, err)
	p.SetAnswer(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	_, err = o.ReadAt(t.Context(), l.Objects[0], make([]byte, 4), 0)
	if !errors.Is(err, fetch.ErrUnreachable) || errors.Is(err, cache.ErrChanged) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want ErrUnreachable", err)
	}
	if _, err := o.List(t.Context()); !errors.Is(err, fetch.ErrUnreachable) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("listing: %v, want ErrUnreachable", err)
	}
	p.SetAnswer(nil)
	wantRead(t, o, l, "data")
}

// TestS3ClockJumps has the server refuse signatures of another time for a while, as it does where one clock jumps. Reads go
// on when both agree again, and say what is wrong when they do not.
func TestS3ClockJumps(t *testing.T) {
	servers.NeedS3(t)
	t.Parallel()
	bucket := s3.Bucket(t)
	s3.Put(t, bucket, "shard", []byte("data"))
	p := sitetest.NewProxy(t, s3.Socket)
	var skewed atomic.Int64 // requests yet to be refused
	p.SetAnswer(func(w http.ResponseWriter, _ *http.Request) bool {
		if skewed.Add(-1) < 0 {
			return false
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the current time is too large.</Message></Error>`)
		return true
	})
	o := openS3(t, sitetest.S3Source(p, bucket))
	defer closeOrigin(t, o)
	skewed.Store(2)
	l, err := o.List(t.Context())
	must(t, err)
	skewed.Store(3)
	wantRead(t, o, l, "data")
	if skewed.Load() > 0 {
		t.Error("no request was refused")
	}

	hasty := openOf(t, sitetest.S3Source(p, bucket), fetch.Options{Patience: time.Second / 2, Stall: patience})
	defer closeOrigin(t, hasty)
	skewed.Store(1 << 30)
	_, err = hasty.ReadAt(t.Context(), l.Objects[0], make([]byte, 4), 0)
	if !errors.Is(err, fetch.ErrUnreachable) || errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "clock") {
		t.Errorf("%v, want ErrUnreachable, for the clock", err)
	}
}
