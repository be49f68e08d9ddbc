package main

import (
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// server is a web server of one file that is as far away as it is told to be.
type server struct {
	url     string
	http    *http.Server
	path    string
	latency time.Duration
	rate    float64
}

func newServer(path string, latency time.Duration, rate float64) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{url: "http://" + l.Addr().String() + "/", path: path, latency: latency, rate: rate}
	s.http = &http.Server{Handler: s}
	go func() { _ = s.http.Serve(l) }() // ends with close
	return s, nil
}

func (s *server) close() error { return s.http.Close() }

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(s.latency)
	f, err := os.Open(s.path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	w.Header().Set("ETag", `"1"`)
	if s.rate == 0 {
		http.ServeContent(w, r, "", time.Unix(1e9, 0), f)
		return
	}
	http.ServeContent(&slow{ResponseWriter: w, rate: s.rate, began: time.Now()}, r, "", time.Unix(1e9, 0), f)
}

// slow writes no faster than rate.
type slow struct {
	http.ResponseWriter
	rate  float64
	began time.Time
	n     int64
}

func (w *slow) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	time.Sleep(time.Duration(float64(w.n)/w.rate*1e9) - time.Since(w.began))
	return n, err
}

// ReadFrom copies in pieces, each of which waits for its time. They are large, since this program shares its CPUs with
// the measured one.
func (w *slow) ReadFrom(r io.Reader) (n int64, err error) {
	buf := make([]byte, 512<<10)
	for {
		m, readErr := r.Read(buf)
		if m > 0 {
			k, err := w.Write(buf[:m])
			n += int64(k)
			if err != nil {
				return n, err
			}
		}
		if readErr == io.EOF {
			return n, nil
		}
		if readErr != nil {
			return n, readErr
		}
	}
}
