package main

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// sink speaks as much of S3 as the clients need. It believes the checksums that it is given, and keeps small objects only.
type sink struct {
	url    string
	server *http.Server
	bytes  atomic.Int64

	mu      sync.Mutex // guards the fields below
	objects map[string]kept
	uploads map[string]map[int]part
	ids     atomic.Int64
}

type kept struct {
	size int64
	etag string
	text []byte
}

type part struct {
	size int64
	sum  string
}

const mostKept = 1 << 20

func newSink() (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{url: "http://" + l.Addr().String(), objects: map[string]kept{}, uploads: map[string]map[int]part{}}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.server.Serve(l) }() // ends with close
	return s, nil
}

func (s *sink) close() { _ = s.server.Close() }

// discard reads a body with a buffer that is large enough for the socket.
type discard struct {
	sink *sink
	text []byte
	full bool
}

func (d *discard) Write(p []byte) (int, error) {
	if !d.full {
		d.text = append(d.text, p...)
	}
	d.sink.bytes.Add(int64(len(p)))
	return len(p), nil
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, key := r.URL.Query(), strings.TrimPrefix(r.URL.Path, "/")
	_, uploads := q["uploads"]
	switch {
	case r.Method == http.MethodPut:
		s.put(w, r, key, q.Get("uploadId"), q.Get("partNumber"))
	case r.Method == http.MethodPost && uploads:
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%d</UploadId></InitiateMultipartUploadResult>", s.ids.Add(1))
	case r.Method == http.MethodPost:
		s.complete(w, r, key)
	case r.Method == http.MethodGet && q.Has("list-type"):
		s.list(w, q.Get("prefix"), strings.SplitN(key, "/", 2)[0])
	case r.Method == http.MethodGet && uploads:
		fmt.Fprint(w, "<ListMultipartUploadsResult></ListMultipartUploadsResult>")
	default:
		s.get(w, r, key)
	}
}

func (s *sink) put(w http.ResponseWriter, r *http.Request, key, upload, number string) {
	body, buf := &discard{sink: s}, make([]byte, 256<<10)
	if r.ContentLength > mostKept {
		body.full = true
	}
	n, err := io.CopyBuffer(body, struct{ io.Reader }{r.Body}, buf)
	if err != nil {
		return
	}
	sum, etag := r.Header.Get("X-Amz-Checksum-Crc32c"), fmt.Sprintf("%x", md5.Sum(body.text)) // of dropped data, any will do
	if sum != "" {
		w.Header().Set("X-Amz-Checksum-Crc32c", sum)
	}
	w.Header().Set("ETag", `"`+etag+`"`)
	s.mu.Lock()
	defer s.mu.Unlock()
	if upload == "" {
		s.objects[key] = kept{n, etag, body.text}
		return
	}
	if s.uploads[upload] == nil {
		s.uploads[upload] = map[int]part{}
	}
	i, _ := strconv.Atoi(number) // 0 is none, and missing
	s.uploads[upload][i] = part{n, sum}
}

func (s *sink) complete(w http.ResponseWriter, r *http.Request, key string) {
	id := r.URL.Query().Get("uploadId")
	s.mu.Lock()
	defer s.mu.Unlock()
	var size int64
	var sums []byte
	parts := s.uploads[id]
	for n := 1; n <= len(parts); n++ {
		sum, _ := base64.StdEncoding.DecodeString(parts[n].sum) // empty where the client gave none
		size, sums = size+parts[n].size, append(sums, sum...)
	}
	delete(s.uploads, id)
	etag := fmt.Sprintf("48fc5d5ba8e4ae1f3c07fdc5a8bd9a4a-%d", len(parts))
	s.objects[key] = kept{size, etag, nil}
	all := binary.BigEndian.AppendUint32(nil, crc32.Checksum(sums, crc32.MakeTable(crc32.Castagnoli)))
	fmt.Fprintf(w, "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>%s</Key><ETag>&quot;%s&quot;</ETag><ChecksumCRC32C>%s-%d</ChecksumCRC32C></CompleteMultipartUploadResult>",
		key, etag, base64.StdEncoding.EncodeToString(all), len(parts))
}

func (s *sink) list(w http.ResponseWriter, prefix, bucket string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprint(w, "<ListBucketResult>")
	for key, o := range s.objects {
		if name := strings.TrimPrefix(key, bucket+"/"); strings.HasPrefix(name, prefix) {
			fmt.Fprintf(w, "<Contents><Key>%s</Key><Size>%d</Size><ETag>&quot;%s&quot;</ETag></Contents>", name, o.size, o.etag)
		}
	}
	fmt.Fprint(w, "</ListBucketResult>")
}

func (s *sink) get(w http.ResponseWriter, r *http.Request, key string) {
	s.mu.Lock()
	o, ok := s.objects[key]
	s.mu.Unlock()
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		if r.Method == http.MethodGet {
			fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
		}
		return
	}
	w.Header().Set("ETag", `"`+o.etag+`"`)
	w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Length", strconv.FormatInt(o.size, 10))
	if r.Method == http.MethodGet {
		_, _ = w.Write(o.text)
	}
}
