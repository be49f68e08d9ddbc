package layout

import (
	"context"
	"fmt"
	"strings"
)

// format recognizes one family of files. Recognition has two steps. probe sees one object's head, alone; it is called
// from several goroutines, keeps nothing of head, and returns its findings or nil. assemble then gets those objects of
// one directory that this format's probe was the first to accept. It forms sets of them with [directory.add], and
// reports misfits with [directory.problem].
type format struct {
	name     string
	about    string // one line for people
	probe    func(o *Object, head []byte) any
	assemble func(ctx context.Context, d *directory, members []member)
}

// allFormats returns the formats, those with the strongest evidence first. These are a magic number, an index that
// names its shards, then the mere look of headerless tokens. An object that none recognizes is raw.
func allFormats() []format {
	return []format{
		{"safetensors", "safetensors checkpoints: a JSON header, then tensors; each tensor is a file of its own in a view", safetensorsProbe, safetensorsAssemble},
		{"gguf", "GGUF weights of llama.cpp: each tensor is a file of its own in a view", ggufProbe, ggufAssemble},
		{"parquet", "Parquet: a column of integer lists is the tokens; hbmfs pack reads columns of texts", parquetProbe, parquetAssemble},
		{"packed", "TinyLlama's and litgpt's PackedDataset (LITPKDS): a 24-byte header, then tokens", packedProbe, headedAssemble("the format does not say where documents begin: hbmfs pack can find them by their end-of-text token")},
		{"arrow", "Arrow IPC streams and files, as Hugging Face datasets are saved: a column of integer lists is the tokens", arrowProbe, arrowAssemble},
		{"webdataset", "WebDataset and other tar archives (ustar, pax, GNU): each member is a file of its own in a view", webdatasetProbe, webdatasetAssemble},
		{"npy", "NumPy arrays: .npy versions 1 to 3, arrays of integers are tokens", npyProbe, npyAssemble},
		{"fairseq", "fairseq's MMIDIDX: a .bin of tokens with an .idx that has no documents", fairseqProbe, fairseqAssemble},
		{"megatron", "Megatron-LM, NeMo and GPT-NeoX: a .bin of tokens, or pieces of it, with its .idx", megatronProbe, megatronAssemble},
		{"llmc", "llm.c, modded-nanogpt and NeMo Automodel shards: a 1024-byte header, then tokens; documents from Automodel's .bos.idx", llmcProbe, llmcAssemble},
		{"llmc-eval", "llm.c's evaluation file of questions and answers: no views", evalProbe, namedAssemble},
		{"records", "TFRecord, ArrayRecord and Riegeli: no views", recordProbe, namedAssemble},
		{"pbin", "Modalities' .pbin: a 12-byte header, then tokens", pbinProbe, headedAssemble("the documents are listed in a pickle behind the tokens, which is not read: hbmfs pack can find them by their end-of-text token")},
		{"mds", "MosaicML Streaming: MDS shards, named by index.json", jsonIndexProbe("shards"), mdsAssemble},
		{"litdata", "Lightning LitData: chunks of tokens or items, named by index.json", jsonIndexProbe("chunks"), litdataAssemble},
		{"datatrove", "datatrove and nanotron: .ds tokens with .ds.index and .ds.metadata", datatroveProbe, datatroveAssemble},
		{"olmo", "OLMo and Dolma: headerless tokens (.npy, .bin) with a .csv.gz that lists their documents", olmoProbe, olmoAssemble},
		{tokensFormat, "headerless tokens (nanoGPT's train.bin, OLMo's .npy that is none): known by their values, or by --dtype", tokensProbe, tokensAssemble},
	}
}

// tokensFormat is the name of the format of headerless tokens, and nanoGPT one that hbmfs pack has for it.
const (
	tokensFormat = "tokens"
	nanoGPT      = "nanogpt"
)

// Formats returns the names of all formats with a line about each, in the order in which they are tried.
func Formats() (names, about []string) {
	for _, f := range allFormats() {
		names, about = append(names, f.name), append(about, f.about)
	}
	return append(names, nanoGPT, "raw"), append(about, "the same as tokens, as hbmfs pack calls it", "anything else: files as they are, no views")
}

func selectFormats(opt Options) ([]format, error) {
	switch opt.Format {
	case "":
		return allFormats(), nil
	case "raw":
		return nil, nil
	case nanoGPT:
		opt.Format = tokensFormat
	}
	for _, f := range allFormats() {
		if f.name == opt.Format {
			return []format{f}, nil
		}
	}
	names, _ := Formats()
	return nil, fmt.Errorf("format %q is not known: use one of %s", opt.Format, strings.Join(names, ", "))
}
