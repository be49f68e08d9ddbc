package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// make writes the dataset, of random bytes.
func (b *bench) make() error {
	root := filepath.Join(b.dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	var seed [32]byte
	block := make([]byte, 1<<20)
	for i := range b.files {
		f, err := os.Create(filepath.Join(root, fmt.Sprintf("train-%03d.bin", i)))
		if err != nil {
			return err
		}
		seed[0] = byte(i)
		random, sum := rand.NewChaCha8(seed), xxhash.New()
		for left := b.size / int64(b.files); left > 0; left -= int64(len(block)) {
			block = block[:min(left, 1<<20)]
			_, _ = random.Read(block) // never fails
			_, _ = sum.Write(block)   // never fails
			if _, err := f.Write(block); err != nil {
				return errors.Join(err, f.Close())
			}
		}
		block = block[:1<<20]
		b.sums = append(b.sums, sum.Sum64())
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// ServeHTTP is the origin: a listing as nginx makes it, and the files.
func (b *bench) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(b.latency)
	if b.s3 != nil {
		b.s3.way.ServeHTTP(&limited{w, b}, r)
		return
	}
	if r.URL.Path == "/" {
		w.Header().Set("Content-Type", "application/json")
		var names []string
		for i := range b.files {
			names = append(names, fmt.Sprintf(`{"name":"train-%03d.bin","type":"file"}`, i))
		}
		fmt.Fprintf(w, "[%s]", strings.Join(names, ","))
		return
	}
	f, err := os.Open(filepath.Join(b.dir, "root", filepath.Base(r.URL.Path)))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer func() { _ = f.Close() }()
	w.Header().Set("ETag", fmt.Sprintf(`"%s"`, filepath.Base(r.URL.Path)))
	http.ServeContent(&limited{w, b}, r, "", time.Unix(1_700_000_000, 0), f)
}

// limited is an answer through the origin's link, which all share.
type limited struct {
	http.ResponseWriter
	b *bench
}

func (l *limited) Write(p []byte) (int, error) {
	l.b.mu.Lock()
	now := time.Now()
	if l.b.next.Before(now) {
		l.b.next = now
	}
	l.b.next = l.b.next.Add(time.Duration(float64(len(p)) / l.b.rate * 1e9))
	wait := l.b.next.Sub(now)
	l.b.mu.Unlock()
	time.Sleep(wait)
	n, err := l.ResponseWriter.Write(p)
	l.b.sent.Add(int64(n))
	return n, err
}
