package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/klauspost/compress/snappy"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// FuzzDecode gives any bytes to any codec: what comes out has the size that was asked for, or it is an error, and never
// is more than that handed on.
func FuzzDecode(f *testing.F) {
	data := plain(1000)
	for i, coded := range [][]byte{zstdOf(f, data), gzipOf(f, data), snappy.Encode(nil, data), bzip2Hello(f), seekable(f, data, 100)} {
		for _, n := range []int{len(coded), len(coded) - 1, len(coded) / 2, 0} {
			f.Add(uint8(i), coded[:n], uint16(1000))
		}
	}
	kinds := []string{"zstd", "gz", "snappy", "bz2", "zstd"}
	f.Fuzz(func(t *testing.T, kind uint8, coded []byte, size uint16) {
		c, err := codecOf(kinds[int(kind)%len(kinds)])
		if err != nil {
			t.Fatal(err)
		}
		x := newOrigin()
		o := &layout.Object{Name: "s", Size: int64(size), Whole: true}
		x.of[o] = stored{zip: layout.Bytes("s.z", coded), codec: c}
		got := 0
		err = x.Fetch(t.Context(), o, 0, o.Size, func(p []byte) error { got += len(p); return nil })
		if got > int(size) || (err == nil && got < int(size)) || (err != nil && !errors.Is(err, cache.ErrDamaged)) {
			t.Errorf("%d bytes of %d, %v", got, size, err)
		}
	})
}

// FuzzIndex rewrites any index: what comes out is JSON of which a second rewriting finds nothing to do.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"shards": [{"zip_data": {"basename": "a"}, "raw_data": {"bytes": 1}, "compression": "gz"}, {"zip_data": null}], "version": 2}`))
	f.Add([]byte(`{"zip_data": 1, "shards": [null, {}], "shards": []}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		out, shards, err := rewriteIndex(text, len(text))
		if err != nil || out == nil {
			return
		}
		if !json.Valid(out) {
			t.Fatalf("%q became %q", text, out)
		}
		again, left, err := rewriteIndex(out, len(out))
		if err != nil || len(left) > 0 || (again != nil && !bytes.Equal(again, out)) {
			t.Errorf("%q with %d shards became %q, and that %q with %d: %v", text, len(shards), out, again, len(left), err)
		}
	})
}
