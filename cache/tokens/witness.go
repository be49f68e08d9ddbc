package tokens

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// Bounds of servers that give out tokens.
const (
	MostAnswer   = 1 << 20          // bytes of an answer
	AnswerWithin = 30 * time.Second // of a server
)

// Witness stands between the transport and the libraries that ask for tokens, which put whole answers into their errors. It
// keeps why the last request failed, in words that show no secret.
type Witness struct {
	http.RoundTripper
	Remedy func(code string) string // says what helps against a refusal
	Pass   bool                     // gives refusals to the library, which goes on with another place by them
	Failed error
}

// Client asks under the witness, and follows no redirect.
func (w *Witness) Client() *http.Client {
	return &http.Client{Transport: w, Timeout: AnswerWithin, CheckRedirect: Stay}
}

// Stay has a client not follow redirects: a request with a secret is for the server that it names.
func Stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// RoundTrip implements [http.RoundTripper].
func (w *Witness) RoundTrip(q *http.Request) (*http.Response, error) {
	w.Failed = nil
	res, err := w.RoundTripper.RoundTrip(q)
	if err != nil {
		w.Failed = fmt.Errorf("%s gives no token: %w", q.URL.Host, err)
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, MostAnswer+1))
	_ = res.Body.Close() // it is read
	res.Body = io.NopCloser(bytes.NewReader(text))
	switch {
	case err != nil:
		w.Failed = fmt.Errorf("%s gives no token: %w", q.URL.Host, err)
	case len(text) > MostAnswer:
		w.Failed = fmt.Errorf("%w: %s answers with more bytes than any token has", fs.ErrInvalid, q.URL.Host)
	case res.StatusCode/100 != 2:
		w.Failed = w.refusal(q.URL.Host, res, text)
	}
	if w.Failed != nil && (!w.Pass || err != nil || len(text) > MostAnswer) {
		return nil, w.Failed
	}
	return res, nil
}

// refusal is the error of an answer that is no token, as RFC 6749 (5.2) and Google's API write it.
func (w *Witness) refusal(host string, res *http.Response, text []byte) error {
	var said struct {
		Error       json.RawMessage `json:"error"`
		Description string          `json:"error_description"`
	}
	var of struct {
		Status  string `json:"status"`
		Message string `json:"message"`
	}
	code := ""
	if json.Unmarshal(text, &said) == nil && json.Unmarshal(said.Error, &code) != nil && json.Unmarshal(said.Error, &of) == nil {
		code, said.Description = of.Status, of.Message
	}
	why := fmt.Sprintf("%s answers %d %s", host, res.StatusCode, http.StatusText(res.StatusCode))
	if code != "" {
		why += fmt.Sprintf(" (%.60s: %s)", fetch.Said(code), fetch.Said(said.Description))
	}
	if fetch.Lasting(res.StatusCode) {
		return fmt.Errorf("%w: %s: %s", fs.ErrPermission, why, w.Remedy(code))
	}
	return fetch.RetryAfter(res.Header, errors.New(why))
}

// NoCredentials says in a sentence why the credentials that somebody set up cannot be had. It is an [fs.ErrPermission].
type NoCredentials string

func (e NoCredentials) Error() string {
	return string(e) + " (anonymous=true in the source asks without credentials)"
}

// Is implements the interface of [errors.Is].
func (e NoCredentials) Is(target error) bool { return target == fs.ErrPermission }

// NoCredentialsf makes a [NoCredentials].
func NoCredentialsf(format string, args ...any) error {
	return NoCredentials(fmt.Sprintf(format, args...))
}
