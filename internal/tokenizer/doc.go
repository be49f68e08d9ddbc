// Package tokenizer turns text into tokens. It owns vocabularies, the patterns that split text, and byte-pair encoding.
//
//	t, err := tokenizer.Open("gpt2")
//	tokens, repaired, err := t.NewEncoder().Append(nil, []byte("a document"), false)
//
// A [Tokenizer] is shared, each goroutine has an [Encoder] of its own. A long document may be cut where LastCut says; its
// parts then give the tokens of the whole.
package tokenizer
