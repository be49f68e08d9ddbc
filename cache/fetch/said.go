package fetch

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// Said is a server's text of an error, as far as a terminal and a log can bear it. A server may repeat what it was asked with. So secrets are left
// out, and also words as long as tokens and signatures are, and the queries of addresses.
func Said(text string, secrets ...string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "[...]")
		}
	}
	long := regexp.MustCompile(`[A-Za-z0-9_\-+/=.~%]{40,}`)
	words := strings.Fields(fmt.Sprintf("%.4000s", text))
	for i, word := range words {
		before, address, isAddress := strings.Cut(word, "://")
		if words[i] = long.ReplaceAllString(before, "[...]"); isAddress {
			address, _, _ = strings.Cut(address, "?")
			words[i] += "://" + address
		}
	}
	return fmt.Sprintf("%.300s", cli.Printable(strings.Join(words, " ")))
}

// mostError is how much of the body of an error is read, bytes.
const mostError = 64 << 10

// Body is the body of an error, or nothing where it does not come whole.
func Body(res *http.Response) []byte {
	body, err := io.ReadAll(io.LimitReader(res.Body, mostError))
	if err != nil {
		return nil
	}
	return body
}
