package ociorigin

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/tokens"
)

// authFile is the variable that names a file of logins, as of podman and of Kubernetes' pull secrets. Where it is set nothing else counts.
const authFile = "REGISTRY_AUTH_FILE"

// login is the right to ask a registry for a repository. It is safe for concurrent use.
type login struct {
	*tokens.Keeper
	server    server
	scope     string
	anonymous bool
	transport http.RoundTripper
}

// Ways in which a request carries a token.
const (
	ofBasic  = "Basic"
	ofBearer = "Bearer"
)

// Bounds of the seconds that a token lasts, as far as a server is believed. Docker's tools take the first where it says nothing.
const (
	leastToken = 60
	mostToken  = 24 * 60 * 60
)

func newLogin(s server, repo name.Repository, anonymous bool, t http.RoundTripper) *login {
	l := &login{server: s, scope: repo.Scope(transport.PullScope), anonymous: anonymous || s.exposed(), transport: t}
	l.Keeper = tokens.Keep(l.obtain)
	return l
}

// obtain looks for a login, and exchanges it for a token where the registry wants one. Each time it asks the registry what it wants, which
// may change under a mount.
func (l *login) obtain(ctx context.Context) (*tokens.Token, error) {
	challenge, err := transport.Ping(ctx, l.server.registry, onlyScheme{l.server.scheme, l.transport})
	if err != nil {
		return nil, fmt.Errorf("ask the registry %s how it knows its clients: %w", l.server.registry, judge(err))
	}
	kind := strings.ToLower(challenge.Scheme)
	if kind != "basic" && kind != "bearer" {
		return tokens.Without("the registry asked for no login"), nil
	}
	who, err := l.resolve()
	if err != nil {
		return nil, err
	}
	has, err := authn.Authorization(ctx, who)
	if err != nil {
		return nil, fmt.Errorf("%w: the login for %s: %s", fs.ErrPermission, l.server.registry, fetch.Said(err.Error()))
	}
	none := ""
	if who == authn.Anonymous {
		none = fmt.Sprintf("no login for %s was found", l.server.registry.RegistryStr())
	}
	k := tokens.Without("%s", none)
	switch {
	case has.RegistryToken != "":
		k, err = l.token(ofBearer, has.RegistryToken, time.Time{})
	case kind == "basic" && none == "":
		k, err = l.token(ofBasic, base64.StdEncoding.EncodeToString([]byte(has.Username+":"+has.Password)), time.Time{})
	case kind == "bearer":
		asked := time.Now()
		given, failure := transport.Exchange(ctx, l.server.registry, who, l.transport, []string{l.scope}, challenge)
		if failure != nil {
			return nil, l.refusal(tokens.Without("%s", none), failure)
		}
		lasts := time.Duration(min(max(given.ExpiresIn, leastToken), mostToken)) * time.Second
		k, err = l.token(ofBearer, cmp.Or(given.Token, given.AccessToken), asked.Add(lasts))
	}
	if err == nil {
		k.None = none
	}
	return k, err
}

func (l *login) token(kind, text string, end time.Time) (*tokens.Token, error) {
	k, err := tokens.New(text, l.server.registry.RegistryStr(), end)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	k.Kind = kind
	return k, nil
}

// refusal is the error of an exchange that gave no token.
func (l *login) refusal(k *tokens.Token, err error) error {
	if of, ok := errors.AsType[*transport.Error](err); ok && (of.StatusCode == http.StatusUnauthorized || of.StatusCode == http.StatusForbidden) {
		return fmt.Errorf("%w by the server that gives tokens for %s (%s): %s", fs.ErrPermission, l.server.registry, told(of, ""), l.remedy(k))
	}
	return fmt.Errorf("%s gives no token: %w", l.server.registry, judge(err))
}

// remedy says what helps a request that was refused.
func (l *login) remedy(k *tokens.Token) string {
	host := l.server.registry.RegistryStr()
	switch {
	case l.server.exposed():
		return "a login would be readable on its way to " + l.server.url() + ", and was not sent: use https://"
	case l.anonymous:
		return "it is asked without a login (anonymous=true)"
	case k.None != "":
		return fmt.Sprintf("%s: docker login %s, or name a file of logins by %s", k.None, host, authFile)
	}
	return fmt.Sprintf("the login for %s has ended, is wrong, or may not read this repository: docker login %s", host, host)
}

// resolve finds the login where Docker's and podman's tools find it: a file, or a helper that it names.
func (l *login) resolve() (authn.Authenticator, error) {
	if l.anonymous {
		return authn.Anonymous, nil
	}
	where := os.Getenv(authFile)
	var who authn.Authenticator
	var err error
	if where == "" {
		where = "Docker's configuration"
		who, err = authn.DefaultKeychain.Resolve(l.server.registry)
	} else {
		who, err = fromFile(where, l.server.registry)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: find the login for %s in %s: %s", fs.ErrPermission, l.server.registry, where, fetch.Said(err.Error()))
	}
	return who, nil
}

// fromFile finds a login in a file.
func fromFile(path string, r name.Registry) (authn.Authenticator, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	c, err := config.LoadFromReader(f)
	if err != nil {
		return nil, errors.New("it is no file of logins, which is JSON with auths")
	}
	key := r.RegistryStr()
	if key == name.DefaultRegistry {
		key = authn.DefaultAuthKey
	}
	a, err := c.GetAuthConfig(key)
	if err != nil {
		return nil, err
	}
	if a.ServerAddress = ""; a == (types.AuthConfig{}) {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(authn.AuthConfig{
		Username: a.Username, Password: a.Password, Auth: a.Auth, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
	}), nil
}

// mostPing bounds the answer to the question how a registry knows its clients, bytes. Its header says it all.
const mostPing = 64 << 10

// onlyScheme has go-containerregistry use a scheme, and not try both. The library reads answers to their ends, which some never have.
type onlyScheme struct {
	scheme string
	http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (t onlyScheme) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.URL.Scheme = t.scheme
	res, err := t.RoundTripper.RoundTrip(q)
	if err == nil {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, mostPing), res.Body}
	}
	return res, err
}

// judge gives an error of go-containerregistry its class, and leaves out addresses and answers that may have secrets.
func judge(err error) error {
	if of, ok := errors.AsType[*transport.Error](err); ok {
		if fetch.Lasting(of.StatusCode) {
			return fmt.Errorf("%w: the server answers %s: is it a registry?", fs.ErrInvalid, told(of, ""))
		}
		return fmt.Errorf("the server answers %s", told(of, ""))
	}
	if of, ok := errors.AsType[*url.Error](err); ok {
		return of.Err
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, io.ErrUnexpectedEOF) { // the answer broke off
		return err
	}
	text := err.Error()
	for _, known := range []string{"invalid realm", "malformed www-authenticate"} {
		if strings.HasPrefix(text, known) {
			return fmt.Errorf("%w: %s", fs.ErrInvalid, fetch.Said(text))
		}
	}
	return fmt.Errorf("%w: the answer cannot be read", fs.ErrInvalid)
}

// told is the registry's text of an error, without the secret of its request.
func told(e *transport.Error, secret string) string {
	text := fmt.Sprintf("%d %s", e.StatusCode, http.StatusText(e.StatusCode))
	if len(e.Errors) == 0 {
		return text
	}
	return text + ": " + fetch.Said(string(e.Errors[0].Code)+": "+e.Errors[0].Message, secret)
}
