package ociorigin

import (
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

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// authFile is the variable that names a file of logins, as of podman and of Kubernetes' pull secrets. Where it is set nothing else counts.
const authFile = "REGISTRY_AUTH_FILE"

// login is the right to ask a registry for a repository. It is safe for concurrent use.
type login struct {
	server    server
	scope     string
	anonymous bool
	transport http.RoundTripper

	turn      chan struct{}        // has room for its user, who alone uses the fields below
	challenge *transport.Challenge // nil before the registry was asked how it knows its clients
	now       *grant
}

// grant is what a request carries.
type grant struct {
	header string // Authorization, "" for none
	found  bool   // somebody's login was found
}

func newLogin(s server, repo name.Repository, anonymous bool, t http.RoundTripper) *login {
	l := &login{server: s, scope: repo.Scope(transport.PullScope), anonymous: anonymous || s.exposed(), transport: t, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// get gives what a request carries. refused is what the registry has refused, nil for nothing: then there is another try.
func (l *login) get(ctx context.Context, refused *grant) (*grant, error) {
	select {
	case <-l.turn:
		defer func() { l.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if l.now != nil && l.now != refused {
		return l.now, nil
	}
	g, err := l.obtain(ctx)
	if err == nil {
		l.now = g
	}
	return g, err
}

// obtain looks for a login, and exchanges it for a token where the registry wants one.
func (l *login) obtain(ctx context.Context) (*grant, error) {
	if l.challenge == nil {
		c, err := transport.Ping(ctx, l.server.registry, onlyScheme{l.server.scheme, l.transport})
		if err != nil {
			return nil, fmt.Errorf("ask the registry %s how it knows its clients: %w", l.server.registry, judge(err))
		}
		l.challenge = c
	}
	kind := strings.ToLower(l.challenge.Scheme)
	if kind != "basic" && kind != "bearer" {
		return &grant{}, nil
	}
	who, err := l.resolve()
	if err != nil {
		return nil, err
	}
	has, err := authn.Authorization(ctx, who)
	if err != nil {
		return nil, fmt.Errorf("%w: the login for %s: %s", fs.ErrPermission, l.server.registry, fetch.Said(err.Error()))
	}
	g := &grant{found: who != authn.Anonymous}
	switch {
	case has.RegistryToken != "":
		g.header = "Bearer " + has.RegistryToken
	case kind == "basic" && g.found:
		g.header = "Basic " + base64.StdEncoding.EncodeToString([]byte(has.Username+":"+has.Password))
	case kind == "bearer":
		token, err := transport.Exchange(ctx, l.server.registry, who, l.transport, []string{l.scope}, l.challenge)
		if err != nil {
			return nil, l.refusal(g, err)
		}
		if token.Token == "" {
			token.Token = token.AccessToken
		}
		g.header = "Bearer " + token.Token
	}
	if strings.ContainsFunc(g.header, func(c rune) bool { return c < ' ' || c > '~' }) {
		return nil, fmt.Errorf("%w: the login or token for %s has characters that none has", fs.ErrPermission, l.server.registry)
	}
	return g, nil
}

// refusal is the error of an exchange that gave no token.
func (l *login) refusal(g *grant, err error) error {
	if of, ok := errors.AsType[*transport.Error](err); ok && (of.StatusCode == http.StatusUnauthorized || of.StatusCode == http.StatusForbidden) {
		return fmt.Errorf("%w by the server that gives tokens for %s (%s): %s", fs.ErrPermission, l.server.registry, told(of, ""), l.remedy(g))
	}
	return fmt.Errorf("%s gives no token: %w", l.server.registry, judge(err))
}

// remedy says what helps a request that was refused.
func (l *login) remedy(g *grant) string {
	host := l.server.registry.RegistryStr()
	switch {
	case l.server.exposed():
		return "a login would be readable on its way to " + l.server.url() + ", and was not sent: use https://"
	case l.anonymous:
		return "it is asked without a login (anonymous=true)"
	case g == nil || !g.found:
		return fmt.Sprintf("no login for %s was found: docker login %s, or name a file of logins by %s", host, host, authFile)
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
