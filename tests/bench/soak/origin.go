package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// origin serves objects whose bytes follow from their number and place, and fails as often as it is told to.
type origin struct {
	config
	url     string
	http    *http.Server
	answers atomic.Int64
	failed  [faultKinds]atomic.Int64
	bytes   atomic.Int64
}

type fault int

const (
	faultError fault = iota
	faultReset
	faultShort
	faultRange
	faultStall
	faultKinds
)

func (f fault) String() string {
	return [...]string{"500", "reset", "short body", "another range", "stall"}[f]
}

func newOrigin(c config) (*origin, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &origin{config: c, url: "http://" + l.Addr().String() + "/"}
	o.http = &http.Server{Handler: o}
	go func() { _ = o.http.Serve(l) }() // ends with close
	return o, nil
}

func (o *origin) close() error { return o.http.Close() }

func objectName(i int) string { return fmt.Sprintf("shard-%05d.bin", i) }

// content fills p with an object's bytes at off: each eighth byte on is a hash of the object and the place.
func content(object int, p []byte, off int64) {
	var word [8]byte
	for n := 0; n < len(p); {
		at := off + int64(n)
		x := (uint64(at/8) + uint64(object)<<40) * 0x9e3779b97f4a7c15
		x ^= x >> 29
		binary.LittleEndian.PutUint64(word[:], x*0xbf58476d1ce4e5b9)
		n += copy(p[n:], word[at%8:])
	}
}

// objectReader is an object as an io.ReadSeeker.
type objectReader struct {
	object    int
	off, size int64
}

func (r *objectReader) Read(p []byte) (int, error) {
	n := min(int64(len(p)), r.size-r.off)
	if n <= 0 {
		return 0, io.EOF
	}
	content(r.object, p[:n], r.off)
	r.off += n
	return int(n), nil
}

func (r *objectReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.off
	case io.SeekEnd:
		offset += r.size
	}
	r.off = offset
	return offset, nil
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	w.Header().Set("ETag", `"1"`)
	if name == "index.json" {
		_ = json.NewEncoder(w).Encode(o.index()) // a client that does not get it asks again
		return
	}
	i, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(name, "shard-"), ".bin"))
	if err != nil || name != objectName(i) || i >= o.objects {
		http.NotFound(w, r)
		return
	}
	o.answers.Add(1)
	if r.Method == http.MethodGet && rand.Float64() < o.faults {
		f := fault(rand.IntN(int(faultKinds)))
		o.failed[f].Add(1)
		o.fail(w, r, f, i)
		return
	}
	http.ServeContent(&counted{w, &o.bytes}, r, "", time.Unix(1e9, 0), &objectReader{object: i, size: o.objectSize})
}

func (o *origin) index() any {
	type file struct {
		Filename string `json:"filename"`
	}
	var files []file
	for i := range o.objects {
		files = append(files, file{objectName(i)})
	}
	return map[string]any{"chunks": files}
}

type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w *counted) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n.Add(int64(n))
	return n, err
}

// fail answers a request as networks and servers do on bad days.
func (o *origin) fail(w http.ResponseWriter, r *http.Request, f fault, object int) {
	var from, to int64
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to) // hbmfs sends this form alone
	n := to - from + 1
	answer := func(from, n, send int64) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, from+n-1, o.objectSize))
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		w.WriteHeader(http.StatusPartialContent)
		p := make([]byte, send)
		content(object, p, from)
		_, _ = w.Write(p) // the peer may have gone
	}
	switch f {
	case faultError:
		http.Error(w, "slow down", http.StatusServiceUnavailable)
	case faultReset:
		answer(from, n, n/2)
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // so that Close resets
			}
			_ = c.Close() // which is the fault
		}
	case faultShort:
		answer(from, n, n/3)
	case faultRange:
		answer(max(0, from-4096), n, n)
	case faultStall:
		answer(from, n, n/4)
		_ = http.NewResponseController(w).Flush() // the peer may have gone
		select {
		case <-r.Context().Done():
		case <-time.After(time.Minute):
		}
	}
}
