package pack

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/hbmfs/hbmfs/layout"
)

// The formats that Run writes.
const (
	Megatron = "megatron" // {name}_text_document.bin and .idx, Megatron-Core's IndexedDataset
	LLMC     = "llmc"     // {name}_train_000000.bin, 1,024-byte header
	NanoGPT  = "nanogpt"  // train.bin, headerless
	NPY      = "npy"      // {name}_00000.npy, tokens at byte 4096
	MDS      = "mds"      // index.json and shard.00000.mds, MosaicML Streaming
)

// Formats returns the names of the formats, the default first.
func Formats() []string { return []string{Megatron, LLMC, NanoGPT, NPY, MDS} }

// Bounds of the formats' readers.
const (
	llmcMaxTokens = math.MaxInt32 // ntok is an i32
	mdsMaxShard   = math.MaxUint32
	mdsMaxSamples = 1 << 20 // keeps the offset table of one shard at 4 MiB
)

// Default shard sizes. The llm.c one is its own data scripts' (100M tokens), the MDS one MDSWriter's size_limit.
const (
	defaultLLMCTokens = 100_000_000
	defaultNPYTokens  = 1 << 30
	defaultMDSBytes   = 1 << 26
)

// formatRules are the rules of a format.
type formatRules struct {
	dtypes     []layout.DType // the first that the vocabulary fits is the automatic one
	val        bool           // has a validation split
	byDocument bool           // a document never spans shards
}

func rulesOf(format string) (formatRules, error) {
	switch format {
	case Megatron: // indexed_dataset.py's DType has no u32
		return formatRules{dtypes: []layout.DType{layout.U16, layout.I32}, byDocument: true}, nil
	case LLMC:
		return formatRules{dtypes: []layout.DType{layout.U16, layout.U32}, val: true}, nil
	case NanoGPT:
		return formatRules{dtypes: []layout.DType{layout.U16, layout.U32, layout.I32}, val: true}, nil
	case NPY:
		return formatRules{dtypes: []layout.DType{layout.U16, layout.U32, layout.I32}}, nil
	case MDS: // llm-foundry writes int32
		return formatRules{dtypes: []layout.DType{layout.U16, layout.I32, layout.U32}, byDocument: true}, nil
	}
	return formatRules{}, fmt.Errorf("format %q is not known: use %s", format, strings.Join(Formats(), ", "))
}

// dtypeFor returns the type that tokens are written in: the one that is asked for, or the format's first that holds
// every token below vocabulary.
func (r formatRules) dtypeFor(format, asked string, vocabulary int64) (layout.DType, error) {
	wanted, err := layout.ParseDType(asked)
	automatic := asked == "" || asked == "auto"
	if err != nil && !automatic {
		return 0, err
	}
	names := make([]string, len(r.dtypes))
	for i, d := range r.dtypes {
		names[i] = d.String()
		if wanted == d || automatic && vocabulary <= maxToken(d)+1 {
			return d, nil
		}
	}
	if automatic {
		return 0, fmt.Errorf("no dtype of %s holds a vocabulary of %d tokens", format, vocabulary)
	}
	return 0, fmt.Errorf("%s cannot hold dtype %s: use auto, %s", format, asked, strings.Join(names, ", "))
}

func maxToken(d layout.DType) int64 {
	switch d {
	case layout.U16:
		return math.MaxUint16
	case layout.I32:
		return math.MaxInt32
	}
	return math.MaxUint32
}

// errNarrow says that a token does not fit the type of the output.
var errNarrow = errors.New("the token does not fit")

// appendTokens appends tokens to dst as little-endian elements of d, which is U16, U32 or I32.
func appendTokens(dst []byte, d layout.DType, tokens []uint32) ([]byte, error) {
	if d == layout.U16 {
		for _, t := range tokens {
			if t > math.MaxUint16 {
				return dst, fmt.Errorf("token %d as u16: %w, use --dtype u32 or i32", t, errNarrow)
			}
			dst = append(dst, byte(t), byte(t>>8))
		}
		return dst, nil
	}
	for _, t := range tokens {
		if d == layout.I32 && t > math.MaxInt32 {
			return dst, fmt.Errorf("token %d as i32: %w, use --dtype u32", t, errNarrow)
		}
		dst = append(dst, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
	}
	return dst, nil
}
