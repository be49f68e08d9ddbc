package fetch

import (
	"strings"
	"testing"
)

func TestSaid(t *testing.T) {
	for text, want := range map[string]string{
		"No such key: data/shard.bin":                                  "No such key: data/shard.bin",
		"\tone\n two\x1b[31m":                                          "one two?[31m",
		"wrong token short-secret, or twice short-secret":              "wrong token [...], or twice [...]",
		"token " + strings.Repeat("aB3_", 10) + ".":                    "token [...]",
		"token " + strings.Repeat("a", 39):                             "token " + strings.Repeat("a", 39),
		"see https://host.test/path?X-Signature=abc#x now":             "see https://host.test/path now",
		strings.Repeat("b", 50) + `:"https://host.test/?sig=c"`:        `[...]:"https://host.test/`,
		strings.Repeat("long ", 100):                                   strings.Repeat("long ", 60),
		"Credential=A/us-east-1, Signature=" + strings.Repeat("0", 64): "Credential=A/us-east-1, [...]",
	} {
		if got := Said(text, "short-secret", ""); got != want {
			t.Errorf("of %q it says %q, want %q", text, got, want)
		}
	}
}
