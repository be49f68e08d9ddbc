package httporigin

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
)

const (
	mostParts    = 64      // of a pipeline
	mostPipeline = 1 << 20 // bytes of the index that names them
)

// modelFiles are the files that Hugging Face's libraries look for beside a model's weights, and no index names. They are the
// constants of transformers (utils/__init__.py, tokenization_utils_base.py and the tokenizers' VOCAB_FILES_NAMES) and
// sentence-transformers.
func modelFiles() []string {
	return append([]string{
		"config.json", "generation_config.json", "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json",
		"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json",
		"README.md", "LICENSE",
	}, tokenizerFiles()...)
}

func tokenizerFiles() []string {
	return []string{
		"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
		"vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "tekken.json",
	}
}

// partFiles are the files that a part of a pipeline may have: the constants of diffusers (utils/constants.py) and transformers.
func partFiles() []string {
	return append([]string{
		"config.json", "scheduler_config.json", "generation_config.json", "preprocessor_config.json",
		"diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model" + weightIndex,
		"model.safetensors", "model.fp16.safetensors", "model" + weightIndex,
	}, tokenizerFiles()...)
}

// weightIndex ends the name of an index of weights, wherever it lies.
const weightIndex = ".safetensors.index.json"

// pipelineNames reads the model_index.json of diffusers: each part is a directory, named as the library and class that load it.
func pipelineNames(data []byte) ([]string, error) {
	if len(data) > mostPipeline {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", len(data), mostPipeline)
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return nil, err
	}
	names := []string{"README.md", "LICENSE"}
	count := 0
	for part, text := range parts {
		var loader []*string
		if json.Unmarshal(text, &loader) != nil || len(loader) != 2 || loader[0] == nil { // a setting, or a part that is left out
			continue
		}
		if !fs.ValidPath(part) || part == "." {
			return nil, fmt.Errorf("%q is no name of a directory", part)
		}
		if count++; count > mostParts {
			return nil, fmt.Errorf("it has more than %d parts", mostParts)
		}
		for _, name := range partFiles() {
			names = append(names, path.Join(part, name))
		}
	}
	slices.Sort(names)
	return names, nil
}
