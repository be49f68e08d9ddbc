package csi_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// bucket is the only one of the store.
const bucket = "datasets"

// s3Store is the part of S3 that a mount asks for, in this process: it checks credentials, refuses keys that were
// revoked, and counts the bytes that it gives.
type s3Store struct {
	*httptest.Server

	mu      sync.Mutex
	objects map[string][]byte
	keys    map[s3Key]string // the code of the refusal, empty where the key is good
	given   map[string][]span
	refused int
}

// s3Key are credentials.
type s3Key struct{ id, key, token string }

// secret is the Kubernetes secret of a key.
func (k s3Key) secret() map[string]string {
	m := map[string]string{"AWS_ACCESS_KEY_ID": k.id, "AWS_SECRET_ACCESS_KEY": k.key}
	if k.token != "" {
		m["AWS_SESSION_TOKEN"] = k.token
	}
	return m
}

// span is a range of an object, [from, to).
type span struct{ from, to int64 }

func newS3Store(t testing.TB, keys ...s3Key) *s3Store {
	s := &s3Store{objects: map[string][]byte{}, keys: map[s3Key]string{}, given: map[string][]span{}}
	for _, k := range keys {
		s.rule(k, "")
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// rule makes a key good, or says with which code it is refused from now on.
func (s *s3Store) rule(k s3Key, refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[k] = refusal
}

// put puts files below a prefix.
func (s *s3Store) put(prefix string, files []file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		s.objects[prefix+"/"+f.Name] = content(f)
	}
}

// gave returns how many bytes of an object were given, and whether one of them was given twice.
func (s *s3Store) gave(key string) (n int64, twice bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	spans := slices.SortedFunc(slices.Values(s.given[key]), func(a, b span) int { return int(a.from - b.from) })
	var end int64
	for _, g := range spans {
		n += g.to - g.from
		twice = twice || g.from < end
		end = max(end, g.to)
	}
	return n, twice
}

func (s *s3Store) refusals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

func (s *s3Store) serve(w http.ResponseWriter, r *http.Request) {
	if refusal := s.check(r); refusal != "" {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>refused by the test</Message></Error>`, refusal)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/"+bucket)
	name = strings.TrimPrefix(name, "/")
	switch {
	case !ok:
		missing(w, "NoSuchBucket")
	case name == "":
		s.list(w, r.URL.Query().Get("prefix"), r.URL.Query().Get("start-after"))
	default:
		s.get(w, r, name)
	}
}

func missing(w http.ResponseWriter, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>it is not here</Message></Error>`, code)
}

// check tells why a request is refused.
func (s *s3Store) check(r *http.Request) (refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	refusal = "InvalidAccessKeyId"
	for k, ruled := range s.keys {
		if strings.Contains(r.Header.Get("Authorization"), "Credential="+k.id+"/") {
			if refusal = ruled; !k.signed(r) {
				refusal = "SignatureDoesNotMatch"
			}
		}
	}
	if refusal != "" {
		s.refused++
	}
	return refusal
}

// signed tells whether this key signed a request: Signature Version 4 as AWS documents it, for requests without a body.
func (k s3Key) signed(r *http.Request) bool {
	fields := map[string]string{}
	for field := range strings.SplitSeq(strings.TrimPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 "), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		fields[name] = value
	}
	_, scope, _ := strings.Cut(fields["Credential"], "/")
	var headers strings.Builder
	for name := range strings.SplitSeq(fields["SignedHeaders"], ";") {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.Host
		}
		fmt.Fprintf(&headers, "%s:%s\n", name, strings.TrimSpace(value))
	}
	query := strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20")
	request := strings.Join([]string{r.Method, r.URL.EscapedPath(), query, headers.String(), fields["SignedHeaders"], r.Header.Get("X-Amz-Content-Sha256")}, "\n")
	text := fmt.Sprintf("AWS4-HMAC-SHA256\n%s\n%s\n%x", r.Header.Get("X-Amz-Date"), scope, sha256.Sum256([]byte(request)))
	key := []byte("AWS4" + k.key)
	for part := range strings.SplitSeq(scope, "/") { // day, region, service, "aws4_request"
		key = keyed(key, part)
	}
	key = keyed(key, text)
	return r.Header.Get("X-Amz-Security-Token") == k.token && fmt.Sprintf("%x", key) == fields["Signature"]
}

func keyed(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text)) // never fails
	return h.Sum(nil)
}

// list answers with one directory.
func (s *s3Store) list(w http.ResponseWriter, prefix, after string) {
	type object struct {
		Key          string
		LastModified string
		ETag         string
		Size         int
	}
	type commonPrefix struct{ Prefix string }
	result := struct {
		XMLName        xml.Name `xml:"ListBucketResult"`
		Name           string
		Prefix         string
		Delimiter      string
		IsTruncated    bool
		Contents       []object
		CommonPrefixes []commonPrefix
	}{Name: bucket, Prefix: prefix, Delimiter: "/"}
	s.mu.Lock()
	dirs := map[string]bool{}
	for key, data := range s.objects {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok || key <= after {
			continue
		}
		if dir, _, below := strings.Cut(rest, "/"); below {
			dirs[prefix+dir+"/"] = true
			continue
		}
		result.Contents = append(result.Contents, object{key, modified.Format(time.RFC3339), etag(data), len(data)})
	}
	s.mu.Unlock()
	for dir := range dirs {
		result.CommonPrefixes = append(result.CommonPrefixes, commonPrefix{dir})
	}
	slices.SortFunc(result.Contents, func(a, b object) int { return strings.Compare(a.Key, b.Key) })
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(result) // the client sees what is missing
}

var modified = time.Unix(1_700_000_000, 0).UTC()

func etag(data []byte) string { return fmt.Sprintf(`"%x"`, md5.Sum(data)) }

func (s *s3Store) get(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	data, ok := s.objects[name]
	if from, to, ranged := parseRange(r.Header.Get("Range")); ok && ranged && r.Method == http.MethodGet {
		s.given[name] = append(s.given[name], span{from, min(to+1, int64(len(data)))})
	}
	s.mu.Unlock()
	if !ok {
		missing(w, "NoSuchKey")
		return
	}
	w.Header().Set("ETag", etag(data))
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", modified, bytes.NewReader(data))
}

func parseRange(header string) (from, to int64, ok bool) {
	first, last, ok := strings.Cut(strings.TrimPrefix(header, "bytes="), "-")
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	return from, to, ok && err1 == nil && err2 == nil
}
