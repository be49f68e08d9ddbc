package layout

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// llmcShard writes a shard as llm.c's data_common.py does.
func llmcShard(magic, version, width uint32, tokens ...uint32) []byte {
	b := make([]byte, llmcHeaderSize)
	for i, v := range []uint32{magic, version, uint32(len(tokens))} {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	if magic == llmcMagicAuto {
		binary.LittleEndian.PutUint32(b[12:], width)
	}
	for _, tok := range tokens {
		if width == 2 {
			b = binary.LittleEndian.AppendUint16(b, uint16(tok))
		} else {
			b = binary.LittleEndian.AppendUint32(b, tok)
		}
	}
	return b
}

func TestLLMCShardsAreOneStream(t *testing.T) {
	v, s := oneSet(t, files{
		"x_train_000000.bin": llmcShard(llmcMagicGPT2, 1, 2, 50256, 1, 2),
		"x_train_000001.bin": llmcShard(llmcMagicGPT2, 1, 2, 3),
	})
	if s.DType != U16 || s.Tokens() != 4 || s.Documents() != -1 {
		t.Errorf("dtype %s, %d tokens, %d documents", s.DType, s.Tokens(), s.Documents())
	}
	want := []byte{0x50, 0xc4, 1, 0, 2, 0, 3, 0}
	if got, ok := readView(t, v, "tokens.bin"); !ok || !bytes.Equal(got, want) {
		t.Errorf("tokens.bin = %x", got)
	}
	if got, ok := readView(t, v, "tokens.npy"); !ok || len(got) != 136 || !bytes.Equal(got[128:], want) {
		t.Errorf("tokens.npy = %x", got)
	}
	if _, ok := readView(t, v, "documents.npy"); ok {
		t.Error("documents.npy exists without document boundaries")
	}
}

func TestLLMCSplitsAndTypesStayApart(t *testing.T) {
	v := index(t, files{
		"x_train_000001.bin": llmcShard(llmcMagicGPT2, 1, 2, 1),
		"x_val_000000.bin":   llmcShard(llmcMagicGPT2, 1, 2, 2),
		"deep/a.bin":         llmcShard(llmcMagicAuto, 1, 2, 3),
		"deep/b.bin":         llmcShard(llmcMagicAuto, 1, 4, 4),
	})
	for path, want := range map[string][]byte{
		"train/tokens.bin": {1, 0}, "val/tokens.bin": {2, 0}, "deep/tokens.bin": {3, 0}, "deep/llmc/tokens.bin": {4, 0, 0, 0},
	} {
		if got, ok := readView(t, v, path); !ok || !bytes.Equal(got, want) {
			t.Errorf("%s = %x, want %x", path, got, want)
		}
	}
}

func TestLLMCLyingHeader(t *testing.T) {
	lying := llmcShard(llmcMagicGPT2, 1, 2, 1, 2, 3)
	binary.LittleEndian.PutUint32(lying[8:], 0xffffffff)
	v := index(t, files{"a.bin": llmcShard(llmcMagicGPT2, 1, 2, 1), "b.bin": lying})
	if p := v.Problems(); len(p) != 1 || p[0].Object != "b.bin" || p[0].Offset != 8 {
		t.Errorf("problems %v", p)
	}
	if _, ok := readView(t, v, "tokens.bin"); ok {
		t.Error("a stream that lacks a shard is shown")
	}
}

func TestLLMCTruncation(t *testing.T) {
	sweep(t, files{"a.bin": llmcShard(llmcMagicLlama, 7, 4, 1, 2, 3), "b.bin": llmcShard(llmcMagicLlama, 7, 4, 5)}, "a.bin")
}

// FuzzLLMC writes what it read again and compares: a header that is believed gives back the file.
func FuzzLLMC(f *testing.F) {
	f.Add(llmcShard(llmcMagicGPT2, 1, 2, 50256, 1))
	f.Add(llmcShard(llmcMagicLlama, 7, 4, 128000))
	f.Add(llmcShard(llmcMagicAuto, 1, 4, 9))
	f.Fuzz(func(t *testing.T, data []byte) {
		v := exercise(t, files{"a.bin": data})
		for _, s := range v.Sets {
			if s.Format != "llmc" || s.Bad() != nil {
				continue
			}
			tokens, _ := readView(t, v, "tokens.bin")
			if again := append(bytes.Clone(data[:llmcHeaderSize]), tokens...); !bytes.Equal(again, data) {
				t.Errorf("read and written again: %x, was %x", again, data)
			}
		}
	})
}

// bosOf writes the index as Automodel's BinaryDataWriter does, which is called for each document: its place in bytes, and what BOS has
// in tokens from there.
func bosOf(bos, width uint32, documents ...[]uint32) (shard, index []byte) {
	var all []uint32
	for _, document := range documents {
		for i, token := range document {
			if token == bos {
				index = binary.LittleEndian.AppendUint32(index, llmcHeaderSize+width*uint32(len(all))+uint32(i))
			}
		}
		all = append(all, document...)
	}
	return llmcShard(llmcMagicAuto, 1, width, all...), index
}

func TestAutomodelDocuments(t *testing.T) {
	for _, width := range []uint32{2, 4} {
		a, ai := bosOf(7, width, []uint32{7, 1, 2}, []uint32{7}, []uint32{7, 3})
		b, bi := bosOf(7, width, []uint32{7, 4})
		f := files{"x_train_0.bin": a, "x_train_0.bos.idx": ai, "x_train_1.bin": b, "x_train_1.bos.idx": bi}
		v, s := oneSet(t, f)
		if s.Format != "llmc" || s.Tokens() != 8 || s.Documents() != 4 || len(v.Problems()) > 0 {
			t.Errorf("%s, %d tokens, %d documents, problems %v", s.Format, s.Tokens(), s.Documents(), v.Problems())
		}
		if got, _ := readView(t, v, "documents.npy"); !slices.Equal(int64s(got[128:]), []int64{0, 3, 4, 6, 8}) {
			t.Errorf("documents.npy = %x", got)
		}
		if _, ok := readView(t, v, "megatron.idx"); !ok {
			t.Errorf("width %d: there is no megatron.idx", width)
		}
		sweep(t, f, "x_train_0.bos.idx")
		delete(f, "x_train_1.bos.idx")
		if v, s = oneSet(t, f); s.Bad() != nil || !strings.Contains(s.Shards[1].NoDocuments, ".bos.idx") {
			t.Errorf("without one of the indexes: %+v", s.Shards[1])
		}
		if got, ok := readView(t, v, "tokens.bin"); !ok || len(got) != 8*int(width) {
			t.Errorf("without one of the indexes there are %d bytes", len(got))
		}
	}
}

// An index that is wrong leaves the tokens, and says why there are no documents. Never is a document cut where none begins.
func TestAutomodelWrongIndex(t *testing.T) {
	entries := func(v ...uint32) []byte {
		b, _ := binary.Append(nil, binary.LittleEndian, v)
		return b
	}
	shard, inside := bosOf(7, 2, []uint32{7, 1, 2, 1}, []uint32{7, 7, 7, 3, 7, 4})
	for name, listed := range map[string][]byte{
		"cut": inside[:6], "empty": {}, "in tokens": entries(0, 4), "in no token": entries(1024, 1033), "back": entries(1024, 1032, 1024),
		"late": entries(1032), "outside": entries(1024, 1044), "huge": entries(1024, 1<<32-2), "another token": entries(1024, 1028), "as written": inside,
	} {
		v := index(t, files{"a.bin": shard, "a.bos.idx": listed})
		s := v.Sets[0]
		if err := s.Check(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if p := v.Problems(); s.Bad() != nil || len(p) != 1 || p[0].Object != "a.bos.idx" || s.Format != "llmc" || s.Documents() != -1 || s.Shards[0].NoDocuments == "" {
			t.Errorf("%s: problems %v, %d documents, %q", name, p, s.Documents(), s.Shards[0].NoDocuments)
		}
		if got, ok := readView(t, v, "tokens.bin"); !ok || !bytes.Equal(got, shard[llmcHeaderSize:]) {
			t.Errorf("%s: tokens.bin = %x", name, got)
		}
		if _, ok := readView(t, v, "documents.npy"); ok {
			t.Errorf("%s: there are documents", name)
		}
	}
}

// FuzzAutomodelIndex compares what an index gives with a search for the token that begins the shard.
func FuzzAutomodelIndex(f *testing.F) {
	_, index := bosOf(7, 2, []uint32{7, 1, 2}, []uint32{7}, []uint32{7, 3})
	f.Add([]byte{7, 1, 2, 7, 7, 3}, index)
	f.Fuzz(func(t *testing.T, tokens, index []byte) {
		wide := make([]uint32, len(tokens))
		for i, b := range tokens {
			wide[i] = uint32(b)
		}
		v := exercise(t, files{"a.bin": llmcShard(llmcMagicAuto, 1, 2, wide...), "a.bos.idx": index})
		for _, s := range v.Sets {
			if s.Format != "llmc" || s.Resolve(t.Context()) != nil || s.Shards[0].Index == nil {
				continue
			}
			starts := make([]int64, s.Documents()+1)
			if err := s.Shards[0].Index.Starts(t.Context(), starts, 0); err != nil {
				continue
			}
			for i, at := range starts[:len(starts)-1] {
				if tokens[at] != tokens[0] || i > 0 && at <= starts[i-1] || i == 0 && at != 0 {
					t.Fatalf("document %d begins at %d of %d", i, at, tokens)
				}
			}
		}
	})
}
