package corpus

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestByteOrderMark has files of JSON begin with the mark that some writers put before UTF-8.
func TestByteOrderMark(t *testing.T) {
	for name, text := range map[string]string{
		"a.jsonl":    "{\"text\": \"one\"}\n{\"text\": \"two\"}\n",
		"lines.json": "{\"text\": \"one\"}\n{\"text\": \"two\"}\n",
		"array.json": "[{\"text\": \"one\"}, {\"text\": \"two\"}]",
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("\xef\xbb\xbf"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := readAll(t, corpusOf(t, Options{Key: "text"}, path))
		if err != nil || !slices.Equal(o.docs, []string{"one", "two"}) {
			t.Errorf("%s: %q, %v", name, o.docs, err)
		}
	}
}
