package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// edited returns the tokenizer.json of a base with some keys replaced.
func edited(t testing.TB, base string, keys map[string]string) []byte {
	v := variant{Base: base, Keys: map[string]json.RawMessage{}}
	for key, value := range keys {
		v.Keys[key] = json.RawMessage(value)
	}
	return v.file(t)
}

// What a tokenizer.json asks that cannot be done exactly is refused, with a sentence of one line.
func TestWhatIsRefused(t *testing.T) {
	split := func(pattern string) string {
		text, _ := json.Marshal(pattern)
		return `{"type":"Split","pattern":{"Regex":` + string(text) + `},"behavior":"Isolated","invert":false}`
	}
	for _, tc := range []struct {
		key, value, want string
	}{
		{"truncation", `{"max_length":512}`, "cuts texts off (truncation)"},
		{"padding", `{"strategy":"BatchLongest"}`, "fills texts up (padding)"},
		{"normalizer", `{"type":"NFKC"}`, `"NFKC" is not supported`},
		{"normalizer", `{"type":"Lowercase"}`, `"Lowercase" is not supported`},
		{"normalizer", `{"type":"BertNormalizer"}`, `"BertNormalizer" is not supported`},
		{"normalizer", `{"type":"NFC","form":2}`, `it has the key "form"`},
		{"normalizer", `{"type":"Replace","pattern":{"Regex":"(a*)*"},"content":""}`, "a repeated group is not supported"},
		{"normalizer", `{"type":"Replace","pattern":{"String":""},"content":""}`, "or empty"},
		{"normalizer", `{"type":"Replace","pattern":{"String":"a"},"content":"` + strings.Repeat("b", 300) + `"}`, "has more than 256 bytes"},
		{"normalizer", `{"type":"Precompiled","precompiled_charsmap":"AAAA"}`, "less than 4 bytes"},
		{"normalizer", `{"type":"Precompiled","precompiled_charsmap":"/////w=="}`, "longer than that"},
		{"normalizer", strings.Repeat(`{"type":"Sequence","normalizers":[`, 40) + strings.Repeat(`]}`, 40), "too many parts"},
		{"pre_tokenizer", `{"type":"Punctuation"}`, `"Punctuation" is not supported`},
		{"pre_tokenizer", `{"type":"BertPreTokenizer"}`, `"BertPreTokenizer" is not supported`},
		{"pre_tokenizer", `{"type":"UnicodeScripts"}`, `"UnicodeScripts" is not supported`},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"ab"}`, "is not one character"},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"last"}`, `the prepend_scheme "last"`},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","add_prefix_space":false}`, "does not match"},
		{"pre_tokenizer", `{"type":"ByteLevel"}`, "add_prefix_space is missing"},
		{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false},{"type":"Digits","individual_digits":true}]}`, `"Digits" after ByteLevel`},
		{"pre_tokenizer", split(`\w+`), `the escape \w is not supported`},
		{"pre_tokenizer", split(`a*`), "matches the empty text"},
		{"pre_tokenizer", split(`(?<=a)b`), "is not supported"},
		{"pre_tokenizer", split(`(?:ab)+`), "a repeated group is not supported"},
		{"pre_tokenizer", split(`a+?`), "takes as few as it can"},
		{"pre_tokenizer", split(`a{2,3}+`), "is not supported"},
		{"pre_tokenizer", split(`a$`), `"$" is not supported here`},
		{"pre_tokenizer", split(`\bx`), `the escape \b`},
		{"pre_tokenizer", split(`(?i:ss)`), "fold together"},
		{"pre_tokenizer", split(`[[:alpha:]]`), "in brackets is not supported"},
		{"pre_tokenizer", split(`[a&&b]`), "in brackets is not supported"},
		{"pre_tokenizer", split(`\p{Greek}`), `the property \p{Greek}`},
		{"pre_tokenizer", split(`(a`), "a parenthesis is not closed"},
		{"pre_tokenizer", split(`a)`), "a parenthesis is closed"},
		{"pre_tokenizer", split(`[a`), "a bracket is not closed"},
		{"pre_tokenizer", split(strings.Repeat("(", 400) + "a" + strings.Repeat(")", 400)), "nested too deep"},
		{"pre_tokenizer", split(strings.Repeat("[", 400) + "a" + strings.Repeat("]", 400)), "nested too deep"},
		{"pre_tokenizer", split(strings.Repeat("a", 4000)), "more than 2048"},
		{"model.type", `"WordPiece"`, `"WordPiece" is not supported`},
		{"model.dropout", `0.1`, "at random (dropout)"},
		{"model.continuing_subword_prefix", `"##"`, "continuing_subword_prefix is not supported"},
		{"model.end_of_word_suffix", `"</w>"`, "end_of_word_suffix is not supported"},
		{"model.unk_token", `"<none>"`, `"<none>" is not in the vocabulary`},
		{"model.vocab", `{}`, "its vocab is empty"},
		{"model.vocab", `{"a":1,"b":1}`, `"a" and "b" have the same number 1`},
		{"model.vocab", `{"a":2147483648}`, `the token "a" has the number 2147483648`},
		{"model.vocab", `{"a":-1}`, `has the number -1`},
		{"model.vocab", `{"a":99999999999999999999}`, "its vocab"},
		{"model.vocab", `["a"]`, "its vocab"},
		{"model.merges", `[["zz","yy"]]`, "is not of tokens in the vocabulary"},
		{"model.merges", `["a b c"]`, "not two tokens"},
		{"model.merges", `[["a","b","c"]]`, "of 3 tokens"},
		{"model.merges", `{}`, "not a list of pairs"},
		{"added_tokens", `[{"id":7,"content":"<new>"}]`, `has the number 7 there, but the tokenizers package gives it`},
		{"added_tokens", `[{"id":0,"content":"<|endoftext|>"},{"id":0,"content":"<|endoftext|>"}]`, "is there twice"},
		{"added_tokens", `[{"id":900,"content":"<new>","single_word":true}]`, "is for single words"},
		{"added_tokens", `[{"id":900,"content":"` + strings.Repeat("x", 2000) + `"}]`, "has more than 1024 bytes"},
	} {
		_, err := parse(edited(t, "bytes", map[string]string{tc.key: tc.value}), t.TempDir())
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %.80s: got %v, want %q", tc.key, tc.value, err, tc.want)
		}
	}
}

func TestWhatUnigramsRefuse(t *testing.T) {
	for _, tc := range []struct{ key, value, want string }{
		{"model.vocab", `[]`, "has 0 tokens"},
		{"model.vocab", `[["a","b"]]`, "it is not a number"},
		{"model.vocab", `[["a",1e999]]`, "it is too large"},
		{"model.vocab", `[["` + strings.Repeat("a", 2000) + `",1]]`, "more than 1024 bytes"},
		{"model.unk_id", `-1`, "the unk_id -1"},
		{"model.unk_id", `1000000`, "the unk_id 1000000"},
		{"pre_tokenizer", `{"type":"ByteLevel","add_prefix_space":false}`, "with ByteLevel is not supported"},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"first"}`, "that removes text"},
	} {
		_, err := parse(edited(t, "unigram", map[string]string{tc.key: tc.value, "added_tokens": "[]"}), t.TempDir())
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %.80s: got %v, want %q", tc.key, tc.value, err, tc.want)
		}
	}
	tok, err := parse(edited(t, "unigram", map[string]string{"model.unk_id": "null"}), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tok.NewEncoder().Append(nil, []byte("a \U0001f600"), false); err == nil || !strings.Contains(err.Error(), "no token for '😀'") {
		t.Errorf("got %v", err)
	}
}

func TestFilesThatAreNone(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct{ content, want string }{
		"empty":     {" \n", "the file is empty"},
		"text":      {"hello", "neither a tokenizer.json, nor a tekken.json"},
		"json":      {`{"a": 1}`, "neither a tokenizer.json, which has a model"},
		"cut":       {`{"model": {`, "not whole JSON"},
		"deep":      {`{"model":` + strings.Repeat("[", 1<<20), "not whole JSON"},
		"sp.model":  {"\n\x0e\n\x05<unk>", "looks like a sentencepiece model, and is broken or cut off"},
		"ranks":     {"IQ== 0\nIg== 1\n", "none of OpenAI's and Llama's"},
		"tekken":    {`{"config":{"default_vocab_size":10},"vocab":[]}`, "lists 0"},
		"tekken2":   {`{"config":{"default_vocab_size":1,"pattern":"x"},"vocab":[{"rank":0,"token_bytes":"YQ=="}]}`, "does not know"},
		"model.bin": {"\x00\x01", "neither a tokenizer.json"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "the directory holds no tokenizer.json") {
		t.Errorf("got %v", err)
	}
	if _, err := Open("gpt5"); err == nil || !strings.Contains(err.Error(), `"gpt5" is none of gpt2`) {
		t.Errorf("got %v", err)
	}
	if _, err := Open(os.DevNull); err == nil || !strings.Contains(err.Error(), "neither a file nor a directory") {
		t.Errorf("got %v", err)
	}
}

// A text that grows without end, and a pattern that looks back without end, are errors and not a program that hangs.
func TestHostileTokenizersEnd(t *testing.T) {
	double := strings.Repeat(`{"type":"Replace","pattern":{"String":"a"},"content":"aa"},`, 15)
	slow := `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{L}*\\p{L}*\\p{L}*\\p{L}*\\p{L}*1"},"behavior":"Isolated","invert":false},` +
		`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`
	many := strings.ReplaceAll(slow, `\\p{L}*\\p{L}*\\p{L}*\\p{L}*\\p{L}*1`, strings.Repeat("(?:a?b?)?", 100)+"a{400}c")
	runtime.LockOSThread() // threadTime is of one
	defer runtime.UnlockOSThread()
	for _, keys := range []map[string]string{
		{"pre_tokenizer": many},
		{"normalizer": `{"type":"Sequence","normalizers":[` + strings.TrimSuffix(double, ",") + `]}`},
		{"pre_tokenizer": slow},
	} {
		tok, err := parse(edited(t, "bytes", keys), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		start := threadTime(t)
		if _, _, err := tok.NewEncoder().Append(nil, []byte(strings.Repeat("a", 20_000)), false); err == nil || !strings.Contains(err.Error(), "too many steps") {
			t.Errorf("got %v", err)
		}
		if d := threadTime(t) - start; d > 30*time.Second {
			t.Errorf("it took %v of CPU time", d)
		}
	}
}

// threadTime is what this thread has worked.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestEndOfText(t *testing.T) {
	file := edited(t, "bytes", nil)
	for _, tc := range []struct {
		name, content string
		want          uint32
		err           string
	}{
		{"tokenizer_config.json", `{"eos_token": "the"}`, 0, `names "the" as the end`},
		{"tokenizer_config.json", `{"eos_token": "<tool>"}`, 900, ""},
		{"tokenizer_config.json", `{"eos_token": {"content": "<tool>", "lstrip": false}}`, 900, ""},
		{"tokenizer_config.json", `{"eos_token": null}`, 0, ""},
		{"special_tokens_map.json", `{"eos_token": "<tool>"}`, 900, ""},
		{"config.json", `{"eos_token_id": 5}`, 5, ""},
		{"config.json", `{"eos_token_id": [5, 6]}`, 0, "config.json has [5, 6]"},
		{"other", "", 0, ""}, // <|endoftext|>, the one with a usual name
	} {
		dir := t.TempDir()
		for name, content := range map[string]string{tc.name: tc.content, "tokenizer.json": string(file)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tok, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tok.EOT()
		if tc.err == "" && (err != nil || got != tc.want) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: got %d and %v, want %d and %q", tc.content, got, err, tc.want, tc.err)
		}
		if tok.Name() != filepath.Base(dir) {
			t.Errorf("the name is %q", tok.Name())
		}
	}
	tok, err := parse(edited(t, "bytes", map[string]string{"added_tokens": "[]"}), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tok.EOT(); err == nil || !strings.Contains(err.Error(), "say it with --eot") {
		t.Errorf("got %v", err)
	}
	if id, ok := tok.ID("<|endoftext|>"); !ok || id != 0 {
		t.Errorf("got %d %v", id, ok)
	}
}

// Tekken's tokens are those of its ranks, after the special ones.
func TestTekken(t *testing.T) {
	var vocab []string
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf(`{"rank":%d,"token_bytes":%q,"token_str":null}`, b, base64.StdEncoding.EncodeToString([]byte{byte(b)})))
	}
	for i, text := range []string{"th", "the", " the"} {
		vocab = append(vocab, fmt.Sprintf(`{"rank":%d,"token_bytes":%q}`, 256+i, base64.StdEncoding.EncodeToString([]byte(text))))
	}
	lower, upper := `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`, `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	first := `[^\r\n\p{L}\p{N}]?`
	pattern, _ := json.Marshal(first + upper + "*" + lower + "+|" + first + upper + "+" + lower + `*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`)
	path := filepath.Join(t.TempDir(), "tekken.json")
	content := fmt.Sprintf(`{"config":{"pattern":%s,"default_vocab_size":268,"default_num_special_tokens":10},"vocab":[%s]}`, pattern, strings.Join(vocab, ","))
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	tok, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := tok.NewEncoder().Append(nil, []byte("the the12"), false)
	if want := "[267 42 267 59 60]"; fmt.Sprint(got) != want || err != nil { // " the" is beyond the size, and \p{N} is one digit
		t.Errorf("got %v (%v), want %s", got, err, want)
	}
	if eot, err := tok.EOT(); err != nil || eot != 2 || tok.Size() != 268 {
		t.Errorf("the end is %d (%v), the size %d", eot, err, tok.Size())
	}
}

// A file of any bytes is loaded or refused; where it is loaded, text becomes tokens below its size.
func FuzzParse(f *testing.F) {
	small := `"added_tokens":[{"id":4,"content":"<x>","normalized":true}],"model":{"type":"BPE","byte_fallback":true,"unk_token":"a","vocab":{"a":0,"b":1,"ab":2,"<0x0A>":3},"merges":[["a","b"]]}}`
	for _, parts := range []string{
		`"normalizer":null,"pre_tokenizer":null,`,
		`"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},{"type":"Replace","pattern":{"String":" "},"content":"_"}]},`,
		`"normalizer":{"type":"Strip","strip_left":true,"strip_right":true},"pre_tokenizer":{"type":"Metaspace","replacement":"_"},`,
		`"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"[^a-c\\p{N}]?\\s+(?!b)|a{1,3}"},"behavior":"MergedWithNext","invert":true},{"type":"ByteLevel","add_prefix_space":true}]},`,
		`"normalizer":{"type":"Precompiled","precompiled_charsmap":"CAAAAAAAAAAAAAAAYQA="},"pre_tokenizer":{"type":"Digits","individual_digits":true},`,
	} {
		f.Add([]byte("{"+parts+small), "the text, 12 of ab\n it")
	}
	f.Add([]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["a",-1.25],["ab",-2e0]]}}`), "ab \u00e9")
	f.Add([]byte(`{"config":{"pattern":"x","default_vocab_size":3,"default_num_special_tokens":1},"vocab":[{"rank":0,"token_bytes":"YQ=="},{"rank":1,"token_bytes":"Yg=="}]}`), "ab")
	f.Add([]byte("IQ== 0\nIg== 1\n"), "!")
	f.Fuzz(func(t *testing.T, raw []byte, text string) {
		if len(raw) > 1<<17 || len(text) > 1<<10 {
			return
		}
		tok, err := parse(raw, "")
		if err != nil {
			return
		}
		tokens, _, err := tok.NewEncoder().Append(nil, []byte(text), false)
		for _, id := range tokens {
			if err == nil && int64(id) >= tok.Size() {
				t.Fatalf("the token %d, of %d", id, tok.Size())
			}
		}
	})
}
