package layout

import (
	"bytes"
	"encoding/binary"
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
