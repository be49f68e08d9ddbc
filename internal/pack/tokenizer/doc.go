// Package tokenizer turns text into tokens, exactly as the tokenizers and tiktoken packages for Python do. It owns the
// files in which models ship their vocabularies, and all that lies between a text and its tokens.
//
//	t, err := tokenizer.Open("models/Qwen3-8B")
//	tokens, repaired, err := t.NewEncoder().Append(nil, []byte("a document"), false)
//
// A [Tokenizer] is shared, each goroutine has an [Encoder] of its own. A long document may be cut where LastCut says; its
// parts then give the tokens of the whole.
//
// A text goes through added tokens, normalizers (normalizer.go, nfc.go, charsmap.go), again added tokens, and the stages of a
// pre-tokenizer (stage.go). The patterns of well-known models are written in Go (split.go), others run on an engine
// (pattern.go). Each piece then goes to a model: ranks as tiktoken has them (bpe.go), merges of pairs (merges.go), or a
// Unigram (unigram.go). A document is tokenized without special tokens: none is added, and their names are text.
//
// Pitfalls: "the same tokens" depends on versions of Unicode. The packages split by Unicode 16.0, find grapheme clusters by
// 17.0 and normalize by 9.0, so this package has tables beside Go's. A tokenizer file that asks for inexact steps is
// refused when it is opened. Files are untrusted: their sizes, and the work for a byte of text, are bounded.
package tokenizer
