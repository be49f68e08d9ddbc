package azorigin

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/tokens"
	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// Kinds of credentials: an account's key signs requests, a shared access signature is in their query, and a token of Entra ID in a header.
const (
	ofKey   = "key"
	ofSAS   = "sas"
	ofEntra = "entra"
)

// Variables that have credentials, as Azure's tools have them, but the one of a file. A connection string in a file may be replaced under a mount.
const (
	connectionVariable = "AZURE_STORAGE_CONNECTION_STRING"
	fileVariable       = "AZURE_STORAGE_CONNECTION_STRING_FILE"
	keyVariable        = "AZURE_STORAGE_KEY"
	keyVariable2       = "AZURE_STORAGE_ACCOUNT_KEY" // of Python's and Rust's libraries
	sasVariable        = "AZURE_STORAGE_SAS_TOKEN"
	accountVariable    = "AZURE_STORAGE_ACCOUNT"
)

const (
	scope    = "https://storage.azure.com/.default" // of tokens: to do what the identity may do with storage
	mostFile = 64 << 10                             // bytes of a file with a connection string
)

// connection is what a connection string says.
type connection struct{ account, endpoint, key, sas string }

// parseConnection reads NAME=VALUE;... Its errors show nothing of the text.
func parseConnection(text string) (connection, error) {
	c, protocol, suffix := connection{}, "https", cloud
	for part := range strings.SplitSeq(strings.TrimSpace(text), ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		switch strings.ToLower(name) {
		case "":
			ok = part == "" || ok
		case "accountname":
			c.account = value
		case "accountkey":
			c.key = value
		case "sharedaccesssignature":
			c.sas = strings.TrimPrefix(value, "?")
		case "blobendpoint":
			c.endpoint = strings.TrimRight(value, "/")
		case "defaultendpointsprotocol":
			protocol = value
		case "endpointsuffix":
			suffix = value
		case "usedevelopmentstorage":
			return c, errors.New("it names the emulator by UseDevelopmentStorage: write its BlobEndpoint, AccountName and AccountKey")
		}
		if !ok {
			return c, errors.New("it is not of the form NAME=VALUE;NAME=VALUE")
		}
	}
	if c.endpoint == "" && c.account != "" && suffix != cloud {
		c.endpoint = protocol + "://" + c.account + ".blob." + suffix
	}
	return c, nil
}

// asker finds credentials.
type asker struct {
	source Source
	client http.RoundTripper // asks Entra ID
	direct http.RoundTripper // asks the machine's services, by no proxy
	worked atomic.Bool       // Entra ID has given a token
}

// given is the key or the SAS that the environment has, nil where it has none.
func (a *asker) given() (*tokens.Token, error) {
	account := a.source.Account
	for _, variable := range []string{fileVariable, connectionVariable} {
		value := os.Getenv(variable)
		if value == "" {
			continue
		}
		if variable == fileVariable {
			text, err := readFile(value)
			if err != nil {
				return nil, tokens.NoCredentialsf("%s names a file that cannot be used: %v", variable, err)
			}
			value = text
		}
		c, err := parseConnection(value)
		switch {
		case err != nil:
			return nil, tokens.NoCredentialsf("%s has no connection string: %v", variable, err)
		case c.account != "" && c.account != account:
			return nil, tokens.NoCredentialsf("%s is of the account %q, and the source of %q", variable, c.account, account)
		case c.key != "":
			return newKey(c.key, "the account's key ("+variable+")")
		case c.sas != "":
			return newSAS(c.sas, "the shared access signature ("+variable+")")
		}
		return nil, tokens.NoCredentialsf("%s has neither AccountKey nor SharedAccessSignature", variable)
	}
	variable := keyVariable
	if os.Getenv(variable) == "" {
		variable = keyVariable2
	}
	key, sas := os.Getenv(variable), os.Getenv(sasVariable)
	if key == "" {
		variable = sasVariable
	}
	if of := os.Getenv(accountVariable); of != "" && of != account && (key != "" || sas != "") {
		return nil, tokens.NoCredentialsf("%s is of the account %q (%s), and the source of %q", variable, of, accountVariable, account)
	}
	switch {
	case key != "":
		return newKey(key, "the account's key ("+variable+")")
	case sas != "":
		return newSAS(strings.TrimPrefix(sas, "?"), "the shared access signature ("+variable+")")
	}
	return nil, nil
}

func readFile(name string) (string, error) {
	info, err := os.Stat(name)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > mostFile) {
		err = fmt.Errorf("%s is no file of at most %s", name, size.Decimal(mostFile))
	}
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(name)
	return string(text), err
}

func newKey(text, from string) (*tokens.Token, error) {
	text = strings.TrimSpace(text)
	if _, err := base64.StdEncoding.DecodeString(text); err != nil {
		return nil, tokens.NoCredentialsf("%s is not in base64, as keys are", from)
	}
	k, err := tokens.New(text, from, time.Time{})
	if err == nil {
		k.Kind = ofKey
	}
	return k, err
}

func newSAS(text, from string) (*tokens.Token, error) {
	text = strings.TrimSpace(text)
	query, err := url.ParseQuery(text)
	if err != nil || query.Get("sig") == "" {
		return nil, tokens.NoCredentialsf("%s is none: want sv=...&sig=...", from)
	}
	end, err := time.Parse(time.RFC3339, query.Get("se"))
	if err != nil {
		end = time.Time{} // a policy of the container has it, or a day
	}
	k, err := tokens.New(text, from, end)
	if err == nil {
		k.Kind = ofSAS
	}
	return k, err
}

// fresh finds the credentials of the moment.
func (a *asker) fresh(ctx context.Context) (*tokens.Token, error) {
	k, err := a.given()
	open := address.Exposed(a.source.Endpoint)
	switch {
	case err != nil:
		return nil, err
	case k != nil && k.Kind == ofKey:
		return k, nil
	case open:
		return tokens.Without("requests carry no credentials, since others could read them on their way to an http:// endpoint"), nil
	case k != nil:
		return k, nil
	}
	return a.entra(ctx)
}

// RoundTrip implements [http.RoundTripper] for the chain: what a machine's own services give comes by no proxy.
func (a *asker) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.URL.Scheme == "http" {
		return a.direct.RoundTrip(q)
	}
	return a.client.RoundTrip(q)
}

// entra asks for a token by the default chain of Azure's libraries. Each time it is made anew, so that files and variables are read again.
func (a *asker) entra(ctx context.Context) (*tokens.Token, error) {
	w := &tokens.Witness{RoundTripper: a, Remedy: remedy, Pass: true}
	options := policy.ClientOptions{Transport: w.Client(), Retry: policy.RetryOptions{MaxRetries: -1}, Telemetry: policy.TelemetryOptions{Disabled: true}}
	// Without discovery, azidentity does not ask Microsoft to confirm an authority that the operator names.
	chain, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true})
	if err != nil {
		return nil, tokens.NoCredentialsf("%s", fetch.Said(err.Error()))
	}
	given, err := chain.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{scope}})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return a.failed(w, err)
	}
	a.worked.Store(true)
	k, err := tokens.New(given.Token, "Entra ID", given.ExpiresOn)
	if err == nil {
		k.Kind = ofEntra
	}
	return k, err
}

// failed is why the chain gives no token, or that there are no credentials at all.
func (a *asker) failed(w *tokens.Witness, err error) (*tokens.Token, error) {
	refused, isRefused := errors.AsType[*azidentity.AuthenticationFailedError](err)
	if isRefused && w.Failed != nil {
		return nil, w.Failed
	}
	why := reasons(err)
	switch {
	case isRefused && refused.RawResponse == nil && a.worked.Load(), !isRefused && a.worked.Load(): // a service of the machine may come back
		return nil, fmt.Errorf("the credentials of Entra ID are gone (%s)", why)
	case isRefused:
		return nil, tokens.NoCredentialsf("Entra ID gives no token: %s", why)
	}
	for _, variable := range []string{"AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_TOKEN_CREDENTIALS"} {
		if os.Getenv(variable) != "" {
			return nil, tokens.NoCredentialsf("the credentials that %s names cannot be used: %s", variable, why)
		}
	}
	return tokens.Without("no credentials were found: neither a key nor a shared access signature in the environment, nor any that Azure's tools use (%s)", why), nil
}

// reasons joins the errors of the chain's members in one line. Members that were not set up are left out.
func reasons(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		member, text, found := strings.Cut(line, ": ")
		if found && strings.HasSuffix(member, "Credential") && !strings.HasPrefix(member, "Default") && !absent(text) {
			text, _, _ = strings.Cut(text, " To troubleshoot")
			lines = append(lines, member+": "+strings.TrimSuffix(text, "."))
		}
	}
	return fetch.Said(cmp.Or(strings.Join(lines, "; "), "none was set up"))
}

// absent tells that a member of the chain was not set up.
func absent(text string) bool {
	for _, words := range []string{"missing environment variable", "no client ID specified", "not found on path", "managed identity timed out", "is not available", "executable not found", "no token file specified"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// remedy says what helps against a refusal of Entra ID.
func remedy(code string) string {
	switch code {
	case "invalid_client":
		return "the secret, the certificate or the token of the identity is wrong or has ended: make a new one, or check the identity's federated credentials"
	case "unauthorized_client", "invalid_request":
		return "check AZURE_CLIENT_ID, AZURE_TENANT_ID and the identity's federated credentials"
	case "invalid_grant":
		return "log in again (az login)"
	}
	return "check AZURE_TENANT_ID and AZURE_CLIENT_ID"
}

// carry has a request carry credentials.
func carry(q *http.Request, k *tokens.Token, account string) error {
	switch k.Kind {
	case ofEntra:
		q.Header.Set("Authorization", "Bearer "+k.Text)
	case ofSAS:
		q.URL.RawQuery = strings.TrimPrefix(q.URL.RawQuery+"&"+k.Text, "&")
	case ofKey:
		key, err := base64.StdEncoding.DecodeString(k.Text)
		if err != nil {
			return fmt.Errorf("%s is not in base64", k.From)
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(toSign(q, account)))
		q.Header.Set("Authorization", "SharedKey "+account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return nil
}

// toSign is the text that the service signs as well, for a request without a body:
// https://learn.microsoft.com/en-us/rest/api/storageservices/authorize-with-shared-key
func toSign(q *http.Request, account string) string {
	var b strings.Builder
	b.WriteString(cmp.Or(q.Method, http.MethodGet) + "\n")
	for _, name := range []string{"Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
		"If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range"} {
		b.WriteString(q.Header.Get(name) + "\n")
	}
	for _, name := range slices.Sorted(maps.Keys(q.Header)) {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-ms-") {
			b.WriteString(lower + ":" + q.Header.Get(name) + "\n")
		}
	}
	b.WriteString("/" + account + q.URL.EscapedPath())
	query := q.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		b.WriteString("\n" + strings.ToLower(name) + ":" + strings.Join(slices.Sorted(slices.Values(query[name])), ","))
	}
	return b.String()
}

// secretsOf are the words of a token that no message may have.
func secretsOf(k *tokens.Token) []string {
	if k.Text == "" {
		return nil
	}
	secrets := []string{k.Text}
	if k.Kind == ofSAS {
		for part := range strings.SplitSeq(k.Text, "&") {
			if sig, ok := strings.CutPrefix(part, "sig="); ok && sig != "" {
				secrets = append(secrets, sig)
				if plain, err := url.QueryUnescape(sig); err == nil && plain != "" {
					secrets = append(secrets, plain)
				}
			}
		}
	}
	return secrets
}
