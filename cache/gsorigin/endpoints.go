package gsorigin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// witness stands between the transport and the libraries that ask for tokens, which put whole answers into their errors. It
// keeps why the last request failed, in words that show no secret.
type witness struct {
	http.RoundTripper
	failed error
}

func (w *witness) client() *http.Client {
	return &http.Client{Transport: w, Timeout: answerWithin, CheckRedirect: stay}
}

// stay has a client not follow redirects: a request with a secret is for the server that it names.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// RoundTrip implements [http.RoundTripper].
func (w *witness) RoundTrip(q *http.Request) (*http.Response, error) {
	w.failed = nil
	res, err := w.RoundTripper.RoundTrip(q)
	if err != nil {
		w.failed = fmt.Errorf("%s gives no token: %w", q.URL.Host, err)
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer+1))
	_ = res.Body.Close() // it is read
	res.Body = io.NopCloser(bytes.NewReader(text))
	switch {
	case err != nil:
		w.failed = fmt.Errorf("%s gives no token: %w", q.URL.Host, err)
	case len(text) > mostAnswer:
		w.failed = fmt.Errorf("%w: %s answers with more bytes than any token has", fs.ErrInvalid, q.URL.Host)
	case res.StatusCode/100 != 2:
		w.failed = refusal(q.URL.Host, res, text)
	}
	if w.failed != nil {
		return nil, w.failed
	}
	return res, nil
}

// refusal is the error of an answer that is no token, as RFC 6749 (5.2) and Google's API write it.
func refusal(host string, res *http.Response, text []byte) error {
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
		return fmt.Errorf("%w: %s: %s", fs.ErrPermission, why, remedy(code))
	}
	return fetch.RetryAfter(res.Header, errors.New(why))
}

// remedy says what helps against a refusal.
func remedy(code string) string {
	switch code {
	case "invalid_grant":
		return "the key, the login or the token has ended, or this machine's clock is wrong: make a new one (gcloud auth application-default login)"
	case "PERMISSION_DENIED":
		return "give the identity the role roles/iam.serviceAccountTokenCreator or roles/iam.workloadIdentityUser of the service account"
	}
	return "check the file of credentials"
}

// The metadata server of Google's machines, and the variable that names another one.
const (
	metadataHost     = "169.254.169.254"
	metadataVariable = "GCE_METADATA_HOST"
	flavor           = "Metadata-Flavor"
)

// probe is how long a machine that may not be Google's has to answer.
const probe = time.Second

// ofMachine asks the metadata server for a token of the machine, or of the pod where GKE has workload identity. Where there is no such
// server requests carry no token.
func (t *tokens) ofMachine(ctx context.Context) (*token, error) {
	host, patience := os.Getenv(metadataVariable), answerWithin
	if host == "" {
		host = metadataHost
		if name, err := os.ReadFile("/sys/class/dmi/id/product_name"); err != nil || !strings.HasPrefix(string(name), "Google") {
			patience = probe
		}
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	address := url.URL{Scheme: "http", Host: host, Path: "/computeMetadata/v1/instance/service-accounts/default/token"}
	q, err := http.NewRequestWithContext(asking, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, noCredentialsf("%s=%q is no HOST or HOST:PORT", metadataVariable, host)
	}
	q.Header.Set(flavor, "Google")
	res, err := t.direct.RoundTrip(q)
	sure := patience == answerWithin
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, fs.ErrPermission):
		return t.without("the metadata server may not be asked here: %v", err)
	case err != nil && sure:
		return nil, fmt.Errorf("the metadata server %s gives no token: %w", host, err)
	case err != nil:
		return t.without("no metadata server of Google answers")
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	_ = res.Body.Close() // it is read
	switch {
	case res.Header.Get(flavor) != "Google":
		return t.without("the metadata server is not Google's")
	case err != nil:
		return nil, fmt.Errorf("the metadata server %s gives no token: %w", host, err)
	case res.StatusCode == http.StatusNotFound:
		return t.without("this machine has no service account, as its metadata server says")
	case res.StatusCode != http.StatusOK:
		return nil, fetch.RetryAfter(res.Header, fmt.Errorf("the metadata server %s answers %d %s", host, res.StatusCode, http.StatusText(res.StatusCode)))
	}
	var given struct {
		Token   string `json:"access_token"`
		Seconds int64  `json:"expires_in"`
	}
	if json.Unmarshal(text, &given) != nil || given.Seconds <= 0 || given.Seconds > 1<<31 {
		return nil, fmt.Errorf("the metadata server %s gives a token that cannot be read", host)
	}
	return newToken(given.Token, "the metadata server "+host, time.Now().Add(time.Duration(given.Seconds)*time.Second))
}

// without is the token of requests that have none, and why.
func (t *tokens) without(format string, args ...any) (*token, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.none = fmt.Sprintf("no credentials were found: %s is not set, gcloud has none, and ", variable) + fmt.Sprintf(format, args...)
	return &token{}, nil
}
