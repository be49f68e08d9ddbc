package decode

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/layout"
)

// BenchmarkDecode decodes a zstd shard of 64 MiB, with the hash that most datasets have, and after each the same bytes by
// the library alone, in parallel. The ratio is of the shortest times, since others use the machine: 1 is as fast as the
// library.
func BenchmarkDecode(b *testing.B) {
	data := plain(64 << 20)
	for name, coded := range map[string][]byte{"one frame": zstdOf(b, data), "frames of 1 MiB": seekable(b, data, 1<<20)} {
		for _, sum := range []string{"", "xxh64", "sha1"} {
			b.Run(name+"/"+sum, func(b *testing.B) { benchmarkDecode(b, data, coded, sum) })
		}
	}
}

func benchmarkDecode(b *testing.B, data, coded []byte, sum string) {
	c, err := codecOf("zstd")
	if err != nil {
		b.Fatal(err)
	}
	x := newOrigin()
	o := &layout.Object{Name: "s", Size: int64(len(data)), Whole: true}
	from := stored{zip: layout.Bytes("s.zstd", coded), codec: c}
	if from.dataHash = fastest(map[string]string{sum: ""}); from.dataHash.make != nil {
		h := from.dataHash.make()
		h.Write(data) // a hash never fails
		from.dataHash.want = hexOf(h)
	}
	x.of[o] = from
	b.SetBytes(int64(len(data)))
	ours, theirs := time.Hour, time.Hour
	for b.Loop() {
		began := time.Now()
		if err := x.Fetch(b.Context(), o, 0, o.Size, func([]byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
		ours = min(ours, time.Since(began))
		b.StopTimer()
		began = time.Now()
		d, err := zstd.NewReader(bytes.NewReader(coded), zstd.WithDecoderConcurrency(0))
		if err != nil {
			b.Fatal(err)
		}
		n, err := d.WriteTo(io.Discard)
		if d.Close(); err != nil || n != o.Size {
			b.Fatal(n, err)
		}
		theirs = min(theirs, time.Since(began))
		b.StartTimer()
	}
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "of-library")
}
