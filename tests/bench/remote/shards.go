package main

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
)

const (
	samplesPerShard = 8000 // of tokensPerSample: shards of 64 MB, as MosaicML Streaming writes them
	tokensPerSample = 4096
)

// shardFile is an index's entry of a file.
type shardFile struct {
	Basename string            `json:"basename"`
	Bytes    int               `json:"bytes"`
	Hashes   map[string]string `json:"hashes"`
}

// shardEntry is an index's entry of a shard of MDS.
type shardEntry struct {
	Version     int       `json:"version"`
	Format      string    `json:"format"`
	Compression string    `json:"compression"`
	Hashes      []string  `json:"hashes"`
	SizeLimit   int       `json:"size_limit"`
	Samples     int       `json:"samples"`
	Names       []string  `json:"column_names"`
	Encodings   []string  `json:"column_encodings"`
	Sizes       []int     `json:"column_sizes"`
	Raw         shardFile `json:"raw_data"`
	Zip         shardFile `json:"zip_data"`
}

// writeShards makes a dataset of MosaicML Streaming, of tokens that compress as text's do, to two thirds.
func writeShards(dir string, count int, sum string) (bytes int64, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	r := rand.New(rand.NewPCG(5, 5))
	text := make([]byte, 8<<20)
	for i := 0; i < len(text); i += 2 {
		binary.LittleEndian.PutUint16(text[i:], uint16(math.Pow(50000, r.Float64())))
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return 0, err
	}
	var entries []shardEntry
	for i := range count {
		raw := shardOf(r, text)
		name := fmt.Sprintf("shard.%05d.mds", i)
		e := shardEntry{
			Version: 2, Format: "mds", Compression: "zstd:3", Hashes: []string{}, SizeLimit: 1 << 26, Samples: samplesPerShard,
			Names: []string{"tokens"}, Encodings: []string{"ndarray:uint16:4096"}, Sizes: []int{2 * tokensPerSample},
			Raw: shardFile{name, len(raw), map[string]string{}},
		}
		h, err := newHash(sum)
		if err != nil {
			return 0, err
		}
		h.Write(raw) // a hash never fails
		e.Hashes, e.Raw.Hashes = []string{sum}, map[string]string{sum: hex.EncodeToString(h.Sum(nil))}
		zip := enc.EncodeAll(raw, nil)
		e.Zip = shardFile{name + ".zstd", len(zip), map[string]string{}}
		if err := os.WriteFile(filepath.Join(dir, e.Zip.Basename), zip, 0o644); err != nil {
			return 0, err
		}
		entries, bytes = append(entries, e), bytes+int64(len(raw))
	}
	index, err := json.Marshal(map[string]any{"version": 2, "shards": entries})
	if err != nil {
		return 0, err
	}
	return bytes, os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644)
}

// shardOf makes a shard of MDS: the number of samples (u32), where each begins and the last ends (u32), their columns
// (JSON), and the samples. mosaicml/streaming, base/format/mds.
func shardOf(r *rand.Rand, text []byte) []byte {
	const about = `{"column_encodings": ["ndarray:uint16:4096"], "column_names": ["tokens"], "column_sizes": [8192], "compression": "zstd:3", "format": "mds", "hashes": [], "size_limit": 67108864, "version": 2}`
	le := binary.LittleEndian
	const begin, size = 4*(samplesPerShard+2) + len(about), 2 * tokensPerSample
	out := le.AppendUint32(make([]byte, 0, begin+samplesPerShard*size), samplesPerShard)
	for i := range samplesPerShard + 1 {
		out = le.AppendUint32(out, uint32(begin+i*size))
	}
	out = append(out, about...)
	for range samplesPerShard {
		at := 2 * r.IntN(len(text)/2-tokensPerSample)
		out = append(out, text[at:at+size]...)
	}
	return out
}

// newHash makes one of the hashes that indexes carry.
func newHash(name string) (hash.Hash, error) {
	switch name {
	case "xxh64":
		return xxhash.New(), nil
	case "sha1":
		return sha1.New(), nil
	}
	return nil, fmt.Errorf("--hash %s: xxh64 and sha1 are known", name)
}
