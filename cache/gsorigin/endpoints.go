package gsorigin

import (
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
	"github.com/hbmfs/hbmfs/cache/tokens"
)

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
func (t *asker) ofMachine(ctx context.Context) (*tokens.Token, error) {
	host, patience := os.Getenv(metadataVariable), tokens.AnswerWithin
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
		return nil, tokens.NoCredentialsf("%s=%q is no HOST or HOST:PORT", metadataVariable, host)
	}
	q.Header.Set(flavor, "Google")
	res, err := t.direct.RoundTrip(q)
	sure := patience == tokens.AnswerWithin
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, fs.ErrPermission):
		return without("the metadata server may not be asked here: %v", err)
	case err != nil && sure:
		return nil, fmt.Errorf("the metadata server %s gives no token: %w", host, err)
	case err != nil:
		return without("no metadata server of Google answers")
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, tokens.MostAnswer))
	_ = res.Body.Close() // it is read
	switch {
	case res.Header.Get(flavor) != "Google":
		return without("the metadata server is not Google's")
	case err != nil:
		return nil, fmt.Errorf("the metadata server %s gives no token: %w", host, err)
	case res.StatusCode == http.StatusNotFound:
		return without("this machine has no service account, as its metadata server says")
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
	return tokens.New(given.Token, "the metadata server "+host, time.Now().Add(time.Duration(given.Seconds)*time.Second))
}

// without is the token of requests that have none, and why.
func without(format string, args ...any) (*tokens.Token, error) {
	return tokens.Without("no credentials were found: %s is not set, gcloud has none, and %s", variable, fmt.Sprintf(format, args...)), nil
}
