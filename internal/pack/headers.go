package pack

import (
	"encoding/binary"
	"fmt"

	"github.com/hbmfs/hbmfs/layout"
)

// noHeader is nanoGPT's: its train.bin is the array alone (nanoGPT, data/openwebtext/prepare.py).
func noHeader(int64) ([]byte, error) { return nil, nil }

// llmcHeader returns the header of an llm.c shard of d: 256 i32 with magic, version and token count. Source: llm.c,
// dev/data/data_common.py (gpt-2 is u16, llama-3 is u32). Tokens start at 1,024: the format leaves no other choice.
func llmcHeader(d layout.DType) func(tokens int64) ([]byte, error) {
	magic, version := uint32(20240520), uint32(1)
	if d == layout.U32 {
		magic, version = 20240801, 7
	}
	return func(tokens int64) ([]byte, error) {
		if tokens > llmcMaxTokens {
			return nil, fmt.Errorf("%d tokens, llm.c counts up to %d in a shard", tokens, llmcMaxTokens)
		}
		head := make([]byte, 1024)
		binary.LittleEndian.PutUint32(head[0:], magic)
		binary.LittleEndian.PutUint32(head[4:], version)
		binary.LittleEndian.PutUint32(head[8:], uint32(tokens))
		return head, nil
	}
}

// npyData is where the tokens of a .npy file start.
const npyData = 4096

// npyHeader returns the header of a one-dimensional array of d.
func npyHeader(d layout.DType) func(tokens int64) ([]byte, error) {
	return func(tokens int64) ([]byte, error) { return layout.NPYHeaderAligned(d, npyData, tokens), nil }
}
