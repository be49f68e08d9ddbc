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
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// scope is the right that tokens are asked for: to read objects.
const scope = "https://www.googleapis.com/auth/devstorage.read_only"

// Bounds of the servers and files that give out tokens.
const (
	mostFile     = 1 << 20           // bytes of a file of credentials
	mostAnswer   = 1 << 20           // bytes of an answer
	answerWithin = 30 * time.Second  // of a server
	earliest     = 225 * time.Second // before its end a token is renewed: the metadata server gives the same one until then
	betweenTries = time.Second       // of renewing a token that still counts
)

// tokens gives requests their tokens. Where they come from is looked up again each time that one is renewed, so that a file of
// credentials may be replaced.
type tokens struct {
	anonymous bool
	client    http.RoundTripper // asks servers that give out tokens
	direct    http.RoundTripper // asks the metadata server, by no proxy

	turn chan struct{} // a goroutine takes its element before it renews

	mu     sync.Mutex // guards what follows
	now    *token
	worked bool      // the server has taken one
	tried  time.Time // when renewing failed
	none   string    // why there are no credentials, "" where there are some, or nobody has looked
}

// token is one that was given, or the knowledge that there are none.
type token struct {
	text  string
	from  string    // in words
	renew time.Time // zero: never
	end   time.Time
}

func newTokens(anonymous bool, client, direct http.RoundTripper) *tokens {
	t := &tokens{anonymous: anonymous, client: client, direct: direct, turn: make(chan struct{}, 1)}
	t.turn <- struct{}{}
	return t
}

// get gives a token that counts, or an empty one for a request without.
func (t *tokens) get(ctx context.Context) (*token, error) {
	if t.anonymous {
		return &token{}, nil
	}
	if k := t.current(); k != nil {
		return k, nil
	}
	select {
	case <-t.turn:
		defer func() { t.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if k := t.current(); k != nil { // another request has renewed it
		return k, nil
	}
	k, err := t.fresh(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.now = k
		return k, nil
	}
	if t.now != nil && time.Now().Before(t.now.end) { // what gives them out may come back in time
		t.tried = time.Now()
		return t.now, nil
	}
	if t.worked && errors.Is(err, fs.ErrPermission) && ctx.Err() == nil { // they will work again, as a rule: a file is replaced, or a pod's token
		err = errors.New(err.Error())
	}
	return nil, err
}

// current is the token of the moment, nil where it is time to renew it.
func (t *tokens) current() *token {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	switch k := t.now; {
	case k == nil:
		return nil
	case k.renew.IsZero() || now.Before(k.renew), now.Before(k.end) && now.Sub(t.tried) < betweenTries:
		return k
	}
	return nil
}

// taken says that the server has answered a request with a token.
func (t *tokens) taken(k *token) {
	if t.anonymous || k.text == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.worked = true
}

// refused says that the server does not know a token. It tells whether another one may be better: this one has worked, or others have that
// came from the same place.
func (t *tokens) refused(k *token) (again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == k {
		t.now = nil
	}
	return k.text != "" && t.worked
}

// why says that requests have no credentials, and why; "" where they have.
func (t *tokens) why() string {
	if t.anonymous {
		return "requests carry no credentials, as the source or its endpoint says"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.none
}

// fresh asks for a new token.
func (t *tokens) fresh(ctx context.Context) (*token, error) {
	file, err := findFile()
	if err != nil {
		return nil, err
	}
	if file == nil {
		return t.ofMachine(ctx)
	}
	w := &witness{RoundTripper: t.client}
	ctx = context.WithValue(ctx, oauth2.HTTPClient, w.client())
	source, err := file.source(ctx)
	if err != nil {
		return nil, err
	}
	given, err := source.Token()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case w.failed != nil:
		return nil, fmt.Errorf("%s: %w", file, w.failed)
	case err != nil: // no server has refused anything: it is the file, or one that it names
		return nil, noCredentialsf("%s: %s", file, fetch.Said(strings.TrimPrefix(err.Error(), "oauth2/google/externalaccount: ")))
	}
	return newToken(given.AccessToken, file.String(), given.Expiry)
}

// newToken makes a token of what was given.
func newToken(text, from string, end time.Time) (*token, error) {
	if text == "" || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil, fmt.Errorf("%s: the token that it gives is none", from)
	}
	k := &token{text: text, from: from, end: end}
	if !end.IsZero() {
		k.renew = end.Add(-min(earliest, time.Until(end)/4))
	}
	return k, nil
}

// noCredentials says in a sentence why the credentials that somebody set up cannot be had. It is an [fs.ErrPermission].
type noCredentials string

func (e noCredentials) Error() string {
	return string(e) + " (anonymous=true in the source asks without credentials)"
}
func (e noCredentials) Is(target error) bool { return target == fs.ErrPermission }

func noCredentialsf(format string, args ...any) error {
	return noCredentials(fmt.Sprintf(format, args...))
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
		return nil, noCredentialsf("%s%v", said, err)
	}
	var head struct {
		Type      string          `json:"type"`
		Web       json.RawMessage `json:"web"`
		Installed json.RawMessage `json:"installed"`
	}
	if json.Unmarshal(f.text, &head) != nil || head.Web != nil || head.Installed != nil { // the error may show a secret; web and installed are of programs that ask a person
		return nil, noCredentialsf("%s%s is not the JSON of a service account, a user or a workload identity", said, name)
	}
	switch f.kind = head.Type; google.CredentialsType(f.kind) {
	case google.ServiceAccount, google.AuthorizedUser, google.ExternalAccount, google.ExternalAccountAuthorizedUser, google.ImpersonatedServiceAccount:
		return f, nil
	}
	return nil, noCredentialsf("%s%s has the type %.40q: want service_account, authorized_user, external_account, external_account_authorized_user or impersonated_service_account", said, name, f.kind)
}

// source makes a source of tokens of a file.
func (f *keyFile) source(ctx context.Context) (oauth2.TokenSource, error) {
	c, err := google.CredentialsFromJSONWithType(ctx, f.text, google.CredentialsType(f.kind), scope)
	if err != nil {
		return nil, noCredentialsf("%s: %s", f, fetch.Said(err.Error()))
	}
	return c.TokenSource, nil
}
