package layout

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"sort"
	"testing"
	"time"
)

// manyMembers is an archive of samples of two members, without the memory for it: headers and zeros.
type manyMembers struct {
	headers [][]byte // of the members of a period of samples
	begin   []int64  // of each header in a period, and the end
	size    int64
}

const period = 1009 // samples

func newManyMembers(t testing.TB, samples int64) (*manyMembers, int64) {
	m := &manyMembers{begin: []int64{0}}
	for i := range int64(period) {
		for name, size := range map[string]int64{"jpg": 50_000 + i*7919%150_000, "json": 100 + i*31%200} {
			raw := tarOf(t, tar.Header{Name: fmt.Sprintf("%08d.%s", i, name), Linkname: string(make([]byte, size))})
			m.headers = append(m.headers, raw[:tarBlock])
			m.begin = append(m.begin, m.begin[len(m.begin)-1]+int64(len(raw)-2*tarBlock))
		}
	}
	m.size = samples/period*m.begin[len(m.begin)-1] + 2*tarBlock
	return m, samples / period * period
}

func (m *manyMembers) ReadAt(_ context.Context, o *Object, p []byte, off int64) (n int, err error) {
	clear(p)
	n = int(min(int64(len(p)), o.Size-off))
	whole := m.begin[len(m.begin)-1]
	for at := off; at < off+int64(n) && at < m.size-2*tarBlock; {
		in := at % whole
		i := sort.Search(len(m.begin), func(i int) bool { return m.begin[i] > in }) - 1
		if skip := in - m.begin[i]; skip < tarBlock {
			copy(p[at-off:n], m.headers[i][skip:])
		}
		at += m.begin[i+1] - in
	}
	if n < len(p) {
		err = io.EOF
	}
	return n, err
}

// TestFieldsOfManySamples builds the fields of 10 million samples in 1,000 archives and bounds their memory. It has
// 20,000 without HBMFS_TEST_LONG.
func TestFieldsOfManySamples(t *testing.T) {
	shards := int64(2)
	if os.Getenv("HBMFS_TEST_LONG") != "" {
		shards = 1000
	}
	archive, samples := newManyMembers(t, 10*period)
	var objects []*Object
	for i := range shards {
		objects = append(objects, &Object{Name: fmt.Sprintf("%04d.tar", i), Size: archive.size, Origin: archive})
	}
	v, err := Index(t.Context(), objects, Options{})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, began := heap(), time.Now()
	all, err := v.Sets[0].samplesOf(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	took, bytes := time.Since(began), heap()-before
	if all.samples != shards*samples || len(all.fields) != 2 {
		t.Fatalf("%d samples of %d fields, want %d of 2", all.samples, len(all.fields), shards*samples)
	}
	for _, f := range all.fields {
		if f.missing != "" || checkStarts(t.Context(), f.index) != nil {
			t.Errorf("%s: %s", f.name, f.missing)
		}
		t.Logf("%s: %d bytes in %d runs", f.name, f.values.Size(), f.values.Runs())
	}
	t.Logf("%d samples: %d MB, %.1f bytes each, in %s", all.samples, bytes>>20, float64(bytes)/float64(all.samples), took.Round(time.Millisecond))
	if most := 30 * all.samples; bytes > most {
		t.Errorf("the fields take %d bytes, at most %d are wanted", bytes, most)
	}
	runtime.KeepAlive(v)
}
