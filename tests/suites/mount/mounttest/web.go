package mounttest

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Web serves files over HTTP, with an index that the mount finds them by.
type Web struct {
	*httptest.Server
	Files map[string][]byte
	Bytes atomic.Int64                  // given
	Gate  atomic.Pointer[chan struct{}] // bytes wait for it
	Waits atomic.Int64                  // requests that did
}

// Mebibyte is 1 MiB in bytes.
const Mebibyte = 1 << 20

// NewWeb serves three files of random bytes until the test ends.
func NewWeb(t *testing.T) *Web {
	t.Helper()
	w := &Web{Files: map[string][]byte{"first.dat": make([]byte, 3*Mebibyte), "second.dat": make([]byte, Mebibyte), "more/third.dat": make([]byte, 2*Mebibyte-100)}}
	random := rand.NewChaCha8([32]byte{3})
	index := map[string]map[string]string{"weight_map": {}}
	for name, data := range w.Files {
		if _, err := random.Read(data); err != nil {
			t.Fatal(err)
		}
		index["weight_map"][name] = name
	}
	listed, err := json.Marshal(index)
	blackbox.Must(t, err)
	w.Files["model.safetensors.index.json"] = listed
	w.Server = httptest.NewServer(w)
	t.Cleanup(w.Close)
	return w
}

// Size is the number of bytes to bring.
func (w *Web) Size() (n int64) {
	for _, data := range w.Files {
		n += int64(len(data))
	}
	return n
}

// ServeHTTP gives a file, behind the gate where there is one.
func (w *Web) ServeHTTP(out http.ResponseWriter, q *http.Request) {
	data, ok := w.Files[strings.TrimPrefix(q.URL.Path, "/")]
	if !ok {
		http.NotFound(out, q)
		return
	}
	if gate := w.Gate.Load(); gate != nil && q.Method == http.MethodGet {
		w.Waits.Add(1)
		select {
		case <-*gate:
		case <-q.Context().Done():
			return
		}
	}
	if q.Method == http.MethodGet {
		w.Bytes.Add(int64(len(data)))
	}
	out.Header().Set("ETag", `"1"`)
	http.ServeContent(out, q, "", time.Time{}, bytes.NewReader(data))
}
