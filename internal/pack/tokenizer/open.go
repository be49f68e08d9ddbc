package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxFile bounds a file of a tokenizer. The largest that models ship has 34 MB. 64 MiB.
const maxFile = 64 << 20

// fileNames are the tokenizer files of a model's directory, the best first.
func fileNames() []string {
	return []string{"tokenizer.json", "tekken.json", "tokenizer.model", "spiece.model"}
}

// openFile loads the tokenizer of a file or a directory.
func openFile(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, plain(err)
	}
	file := path
	if info.IsDir() {
		if file, err = fileIn(path); err != nil {
			return nil, err
		}
	}
	raw, err := readBounded(file, maxFile)
	if err != nil {
		return nil, err
	}
	t, err := parse(raw, filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	t.name, t.sum = fileName(file), hex.EncodeToString(sum[:])
	return t, nil
}

// fileIn returns the tokenizer's file in a directory.
func fileIn(dir string) (string, error) {
	for _, name := range fileNames() {
		if file := filepath.Join(dir, name); isFile(file) {
			return file, nil
		}
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.tiktoken"))
	tekkens, _ := filepath.Glob(filepath.Join(dir, "tekken*.json"))
	if names = append(names, tekkens...); len(names) == 1 {
		return names[0], nil
	}
	return "", fmt.Errorf("the directory holds no %s", strings.Join(fileNames(), ", and no "))
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// fileName is the name of a tokenizer: that of its file, or of the directory where all files have the same name.
func fileName(file string) string {
	for _, name := range fileNames() {
		if filepath.Base(file) == name {
			if dir, err := filepath.Abs(filepath.Dir(file)); err == nil && filepath.Base(dir) != "/" {
				return filepath.Base(dir)
			}
		}
	}
	return filepath.Base(file)
}

// plain leaves out the path, which the caller has.
func plain(err error) error {
	if inner, ok := errors.AsType[*os.PathError](err); ok {
		return inner.Err
	}
	return err
}

func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, plain(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, plain(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is neither a file nor a directory")
	}
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(raw)) > most {
		err = fmt.Errorf("the file has more than %d bytes", most)
	}
	if err != nil {
		return nil, plain(err)
	}
	return raw, nil
}

// parse loads a tokenizer, whose kind it tells from raw's content. dir may hold files that say which token
// ends a text.
func parse(raw []byte, dir string) (*Tokenizer, error) {
	trimmed := bytes.TrimSpace(raw)
	switch {
	case len(trimmed) == 0:
		return nil, errors.New("the file is empty")
	case trimmed[0] == '{':
		var head struct {
			Model  json.RawMessage `json:"model"`
			Config json.RawMessage `json:"config"`
			Vocab  json.RawMessage `json:"vocab"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return nil, fmt.Errorf("the file is not whole JSON: %w", err)
		}
		switch {
		case head.Model != nil:
			return parseHuggingFace(raw, dir)
		case head.Config != nil && head.Vocab != nil:
			return parseTekken(raw)
		}
		return nil, errors.New("the JSON is neither a tokenizer.json, which has a model, nor a tekken.json: name the model's tokenizer.json")
	case isRankFile(trimmed):
		return parseRanks(raw)
	case raw[0] == 0x0a: // the first field of its messages
		return parseSentencePiece(raw)
	}
	return nil, errors.New("the file is neither a tokenizer.json, nor a tekken.json, nor a sentencepiece model, nor a list of ranks as tiktoken has it")
}
