package tokenizer

import (
	"reflect"
	"testing"
)

func FuzzCut(f *testing.F) {
	f.Add([]byte("it's 123 4567\r\n\r\n  x\t\ty's  'S z/\n/ é  ю数"), 7)
	f.Add([]byte("数。\n字!\n/x\n\n'y.\n\u00a0z;\n'll\n\u0301"), 30)
	var encoders []*Encoder
	for _, name := range []string{"gpt2", "cl100k_base", "o200k_base"} {
		encoders = append(encoders, newEncoder(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		if at < 0 || at > len(text) {
			return
		}
		for _, tok := range encoders {
			cut := tok.LastCut(text[:at])
			whole, _, _ := tok.Append(nil, text, false)
			parts, _, _ := tok.Append(nil, text[:cut], false)
			parts, _, _ = tok.Append(parts, text[cut:], true)
			if !reflect.DeepEqual(parts, whole) {
				t.Fatalf("%s: cut at %d: %v, whole: %v", tok.name, cut, parts, whole)
			}
		}
	})
}

// Every place where LastCut may cut, in all texts of a few runes that matter to the patterns.
func TestEveryCut(t *testing.T) {
	alphabet := []string{" ", "\n", "\r", "/", ".", "'", "s", "A", "1", "字", "\u00a0", "\u0301"}
	for _, name := range []string{"gpt2", "cl100k_base", "o200k_base"} {
		tok := newEncoder(t, name)
		for n := range 12 * 12 * 12 * 12 {
			var text []byte
			for range 4 {
				text, n = append(text, alphabet[n%12]...), n/12
			}
			cut := tok.LastCut(text)
			if cut == 0 {
				continue
			}
			whole, _, _ := tok.Append(nil, text, false)
			parts, _, _ := tok.Append(nil, text[:cut], false)
			parts, _, _ = tok.Append(parts, text[cut:], true)
			if !reflect.DeepEqual(parts, whole) {
				t.Fatalf("%s: %q cut at %d: %v, whole: %v", name, text, cut, parts, whole)
			}
		}
	}
}
