package gsorigin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/tokens"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// scope is the right that tokens are asked for: to read objects.
const scope = "https://www.googleapis.com/auth/devstorage.read_only"

// mostFile bounds a file of credentials, bytes.
const mostFile = 1 << 20

// asker asks for tokens.
type asker struct {
	client http.RoundTripper // asks servers that give out tokens
	direct http.RoundTripper // asks the metadata server, by no proxy
}

// fresh asks for a new token.
func (t *asker) fresh(ctx context.Context) (*tokens.Token, error) {
	file, err := findFile()
	if err != nil {
		return nil, err
	}
	if file == nil {
		return t.ofMachine(ctx)
	}
	w := &tokens.Witness{RoundTripper: t.client, Remedy: remedy}
	ctx = context.WithValue(ctx, oauth2.HTTPClient, w.Client())
	source, err := file.source(ctx)
	if err != nil {
		return nil, err
	}
	given, err := source.Token()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case w.Failed != nil:
		return nil, fmt.Errorf("%s: %w", file, w.Failed)
	case err != nil: // no server has refused anything: it is the file, or one that it names
		return nil, tokens.NoCredentialsf("%s: %s", file, fetch.Said(strings.TrimPrefix(err.Error(), "oauth2/google/externalaccount: ")))
	}
	return tokens.New(given.AccessToken, file.String(), given.Expiry)
}

// keyFile is a file of credentials.
type keyFile struct {
	name, kind string
	text       []byte
}

// String says what the credentials are.
func (f *keyFile) String() string { return fmt.Sprintf("the credentials of %s (%s)", f.name, f.kind) }

// variable names the file of credentials to Google's tools.
const variable = "GOOGLE_APPLICATION_CREDENTIALS"

// findFile reads the file of credentials that Google's tools would use, nil where there is none.
func findFile() (*keyFile, error) {
	name, said := os.Getenv(variable), variable+" names a file that cannot be used: "
	if name == "" {
		dir := os.Getenv("CLOUDSDK_CONFIG")
		if dir == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return nil, nil // nobody has a home here
			}
			dir = filepath.Join(home, ".config", "gcloud")
		}
		name, said = filepath.Join(dir, "application_default_credentials.json"), ""
	}
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) && said == "" {
		return nil, nil
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > mostFile) {
		err = fmt.Errorf("%s is no file of at most %s", name, size.Decimal(mostFile))
	}
	f := &keyFile{name: name}
	if err == nil {
		f.text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, tokens.NoCredentialsf("%s%v", said, err)
	}
	var head struct {
		Type      string          `json:"type"`
		Web       json.RawMessage `json:"web"`
		Installed json.RawMessage `json:"installed"`
	}
	if json.Unmarshal(f.text, &head) != nil || head.Web != nil || head.Installed != nil { // the error may show a secret; web and installed are of programs that ask a person
		return nil, tokens.NoCredentialsf("%s%s is not the JSON of a service account, a user or a workload identity", said, name)
	}
	switch f.kind = head.Type; google.CredentialsType(f.kind) {
	case google.ServiceAccount, google.AuthorizedUser, google.ExternalAccount, google.ExternalAccountAuthorizedUser, google.ImpersonatedServiceAccount:
		return f, nil
	}
	return nil, tokens.NoCredentialsf("%s%s has the type %.40q: want service_account, authorized_user, external_account, external_account_authorized_user or impersonated_service_account", said, name, f.kind)
}

// source makes a source of tokens of a file.
func (f *keyFile) source(ctx context.Context) (oauth2.TokenSource, error) {
	c, err := google.CredentialsFromJSONWithType(ctx, f.text, google.CredentialsType(f.kind), scope)
	if err != nil {
		return nil, tokens.NoCredentialsf("%s: %s", f, fetch.Said(err.Error()))
	}
	return c.TokenSource, nil
}
