package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The header of an llm.c shard: 256 little-endian int32, the first three set (source: karpathy/llm.c,
// dev/data/data_common.py, write_datafile for gpt-2).
const (
	llmcHeaderBytes = 1024
	llmcMagic       = 20240520
	llmcVersion     = 1
)

// llmcHeader returns the header of a shard of tokens u16 tokens.
func llmcHeader(tokens int) []byte {
	header := make([]byte, llmcHeaderBytes)
	binary.LittleEndian.PutUint32(header[0:], llmcMagic)
	binary.LittleEndian.PutUint32(header[4:], llmcVersion)
	binary.LittleEndian.PutUint32(header[8:], uint32(tokens))
	return header
}

// shardName is how llm.c's writer names a shard.
func shardName(i int) string { return fmt.Sprintf("bench_train_%06d.bin", i) }

// writeShards writes count llm.c shards of tokens pseudo-random tokens each.
func writeShards(ctx context.Context, dir string, count, tokens int) error {
	random := rand.New(rand.NewPCG(1, 2))
	header := llmcHeader(tokens)
	for i := range count {
		if err := ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(dir, shardName(i))
		if err := writeFile(path, func(w io.Writer) error {
			if _, err := w.Write(header); err != nil {
				return err
			}
			return writeTokens(w, random, tokens)
		}); err != nil {
			return err
		}
	}
	return nil
}

// writeSparseShards writes shards of size bytes each, of which only the header takes room on the disk.
func writeSparseShards(ctx context.Context, dir string, count int, size int64) error {
	header := llmcHeader(int(size-llmcHeaderBytes) / 2)
	for i := range count {
		if err := ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(dir, shardName(i))
		if err := os.WriteFile(path, header, 0o644); err != nil {
			return fmt.Errorf("write a shard: %w", err)
		}
		if err := os.Truncate(path, size); err != nil {
			return fmt.Errorf("write a shard: %w", err)
		}
	}
	return nil
}

// writeTokens writes count u16 tokens of GPT-2's vocabulary (50257), little-endian.
func writeTokens(w io.Writer, random *rand.Rand, count int) error {
	var block [64 << 10]byte
	for count > 0 {
		n := min(count, len(block)/2)
		for i := range n {
			binary.LittleEndian.PutUint16(block[2*i:], uint16(random.Uint32N(50257)))
		}
		if _, err := w.Write(block[:2*n]); err != nil {
			return err
		}
		count -= n
	}
	return nil
}

// The Pile as EleutherAI ships it for Pythia: a Megatron .bin cut into pieces of exactly 5,000,000,000 bytes,
// a smaller last one, and one index (source: EleutherAI/pythia, utils/unshard_memmap.py).
const (
	pieceBytes     = 5_000_000_000
	fullPieces     = 82
	lastPieceBytes = 1_214_000_000
	pileSequences  = 1_000_000
)

// writePieces makes the pieces as sparse files of their real sizes, with a document.idx that fits them.
func writePieces(ctx context.Context, dir string) error {
	for i := range fullPieces + 1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		size := int64(pieceBytes)
		if i == fullPieces {
			size = lastPieceBytes
		}
		// The name says 82 although there are 83 files; so it is at the origin.
		path := filepath.Join(dir, fmt.Sprintf("document-%05d-of-%05d.bin", i, fullPieces))
		if err := writeFile(path, func(io.Writer) error { return os.Truncate(path, size) }); err != nil {
			return err
		}
	}
	const tokens = (fullPieces*pieceBytes + lastPieceBytes) / 2
	return writeFile(filepath.Join(dir, "document.idx"), func(w io.Writer) error {
		return writeMegatronIndex(w, tokens, pileSequences)
	})
}

// writeMegatronIndex writes an index of u16 tokens cut into sequences of nearly equal length, one a document
// (source of the layout: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py, _IndexWriter).
func writeMegatronIndex(w io.Writer, tokens, sequences int64) error {
	const dtypeU16 = 8
	start := func(i int64) int64 { return tokens / sequences * i }
	end := func(i int64) int64 {
		if i == sequences-1 {
			return tokens
		}
		return start(i + 1)
	}
	header := append([]byte("MMIDIDX\x00\x00"), make([]byte, 25)...)
	binary.LittleEndian.PutUint64(header[9:], 1)
	header[17] = dtypeU16
	binary.LittleEndian.PutUint64(header[18:], uint64(sequences))
	binary.LittleEndian.PutUint64(header[26:], uint64(sequences+1))
	if _, err := w.Write(header); err != nil {
		return err
	}
	var b [8]byte
	for i := range sequences {
		binary.LittleEndian.PutUint32(b[:4], uint32(end(i)-start(i)))
		if _, err := w.Write(b[:4]); err != nil {
			return err
		}
	}
	for i := range sequences {
		binary.LittleEndian.PutUint64(b[:], uint64(start(i)*2)) // pointers are in bytes
		if _, err := w.Write(b[:]); err != nil {
			return err
		}
	}
	for i := range sequences + 1 {
		binary.LittleEndian.PutUint64(b[:], uint64(i))
		if _, err := w.Write(b[:]); err != nil {
			return err
		}
	}
	return nil
}

// warmByReading replaces a writer's pages of a file in the page cache by a reader's. The kernel builds larger
// folios for a writer, and users read datasets that somebody else wrote, long ago. (On tmpfs nothing changes.)
func warmByReading(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("warm: %w", err)
	}
	defer f.Close()                  //nolint:errcheck // read only
	if err := f.Sync(); err != nil { // dirty pages cannot be dropped
		return fmt.Errorf("warm %s: %w", path, err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("warm %s: %w", path, err)
	}
	_, err = sequential(ctx, path, 0)
	return err
}

// copyFile copies a file.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer in.Close() //nolint:errcheck // read only
	return writeFile(to, func(w io.Writer) error {
		_, err := io.CopyBuffer(w, struct{ io.Reader }{in}, make([]byte, 1<<20))
		return err
	})
}

// writeFile creates a file and fills it through a buffer.
func writeFile(path string, fill func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write a dataset: %w", err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err := errors.Join(fill(w), w.Flush(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
