// Package azorigin reads datasets from Azure Blob Storage, by three calls of its REST API.
//
// A source is az://ACCOUNT/CONTAINER/PREFIX, with options in its query: see [Parse]. Credentials are an account's key, a shared access
// signature (SAS), or tokens of Entra ID by the default chain of package azidentity. Where there are none, requests carry
// none, as public containers allow.
//
// An object is pinned by the ETag that it was listed with. Each request carries it, so that an object which was replaced
// meanwhile is an error and never other bytes. The version of an object also has the MD5 of all its bytes, where the service
// has one. Bytes are verified by it.
package azorigin

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/tokens"
	"github.com/hbmfs/hbmfs/layout"
)

// apiVersion is the service's version that answers: listings encode names that XML cannot have, and tell directories apart.
const apiVersion = "2021-12-02"

// Container is the objects of a container below a prefix. It is safe for concurrent use.
type Container struct {
	*fetch.Client // which asks by Get, and reads
	tokens.Transports

	source Source
	client *http.Client
	tokens *tokens.Keeper
}

// Open makes an origin. Nothing is asked of the server yet.
func Open(s Source, opt fetch.Options) (*Container, error) {
	if err := s.checkNames(); err != nil {
		return nil, fmt.Errorf("open %s: %w: %w", s, fs.ErrInvalid, err)
	}
	if n := utf8.RuneCountInString(s.Prefix); n > fetch.MostName {
		return nil, fmt.Errorf("open %.100s...: the prefix has %d characters, and names have at most %d: %w", s, n, fetch.MostName, fs.ErrInvalid)
	}
	o := &Container{source: s}
	o.Client = fetch.New(o, opt)
	o.Transports = tokens.Guarded(o.Transport(), opt.Guard)
	o.client = o.Transports.Client()
	o.tokens = tokens.Keep(nil)
	if !s.Anonymous {
		a := &asker{source: s, client: o.Servers, direct: o.Machine}
		if _, err := a.given(); err != nil {
			return nil, fmt.Errorf("open %s: %w", s, err)
		}
		o.tokens = tokens.Keep(a.fresh)
	}
	return o, nil
}

// String is the source, without credentials.
func (o *Container) String() string { return o.source.String() }

// Get implements [fetch.Getter].
func (o *Container) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	return o.get(ctx, o.source.Endpoint, obj, off, n)
}

// through asks another server for an origin's objects.
type through struct {
	*Container
	endpoint string
}

// Get implements [fetch.Getter].
func (t *through) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	return t.get(ctx, t.endpoint, obj, off, n)
}

func (o *Container) get(ctx context.Context, endpoint string, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	v, err := parseVersion(obj.Version)
	if err != nil {
		return nil, err
	}
	res, err := o.do(ctx, question{endpoint: endpoint, name: o.source.dir + obj.Name, headers: []string{
		"Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1), "If-Match", `"` + v.etag + `"`,
	}})
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoContainer) {
			err = fmt.Errorf("%w: %w", err, cache.ErrChanged)
		}
		return nil, err
	}
	res.Version = v.of(res.Header, obj.Version)
	return res, nil
}

// errNoContainer says that the container is not there.
var errNoContainer = fmt.Errorf("there is no such container: %w", fs.ErrNotExist)

// question is a request for an object, or for a listing where name is empty.
type question struct {
	endpoint string
	method   string // "" for GET
	name     string
	query    url.Values
	headers  []string
}

// do makes a request. An answer has status 200 or 206.
func (o *Container) do(ctx context.Context, ask question) (*fetch.Answer, error) {
	address := ask.endpoint + "/" + o.source.Container
	if ask.name != "" {
		address += "/" + escape(ask.name)
	}
	q, err := http.NewRequestWithContext(ctx, ask.method, address, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is no address", fs.ErrInvalid, o)
	}
	q.URL.RawQuery = ask.query.Encode()
	q.Header.Set("Accept-Encoding", "identity")
	q.Header.Set("X-Ms-Version", apiVersion)
	q.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
	for i := 0; i < len(ask.headers); i += 2 {
		q.Header.Set(ask.headers[i], ask.headers[i+1])
	}
	k, err := o.tokens.Get(ctx)
	if err == nil {
		err = carry(q, k, o.source.Account)
	}
	if err != nil {
		return nil, err
	}
	res, err := fetch.Do(o.client, q)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusPartialContent {
		o.tokens.Taken(k)
		return &fetch.Answer{Response: res}, nil
	}
	defer func() { _ = res.Body.Close() }() // it is not what was asked for
	return nil, o.explain(k, res)
}

// escape is a name as it is in a URL. Azure takes a dot for a dot, which Go's client leaves as it is.
func escape(name string) string {
	return strings.ReplaceAll(url.PathEscape(name), "%2F", "/")
}

// said is the server's text of an error, as far as a terminal and a log can bear it, and its code.
func said(res *http.Response, k *tokens.Token) (text, code string) {
	body := fetch.Body(res)
	var e struct {
		Code    string `xml:"Code"`
		Message string `xml:"Message"`
		Detail  string `xml:"AuthenticationErrorDetail"`
	}
	text = string(body)
	if xml.Unmarshal(body, &e) == nil && e.Message != "" {
		text, _, _ = strings.Cut(e.Message, "\nRequestId:") // and a time, which make each error another one
		if strings.HasPrefix(e.Detail, "Signature not valid in the specified time frame") {
			text += " " + e.Detail
		}
	} else if strings.Contains(text, "<") { // a page, or half an answer
		text = ""
	}
	if code = res.Header.Get("X-Ms-Error-Code"); code == "" {
		code = e.Code
	}
	code = fetch.Said(code, secretsOf(k)...)
	if len(code) > 60 || strings.ContainsFunc(code, func(c rune) bool { return c < 'A' || c > 'z' || c > 'Z' && c < 'a' }) { // Azure's are words
		code = ""
	}
	text = fetch.Said(text, secretsOf(k)...)
	status := fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode))
	if code != "" {
		status += ", " + code
	}
	if text == "" {
		return status, code
	}
	return status + ": " + text, code
}

// explain gives an answer its class: final or worth another attempt.
func (o *Container) explain(k *tokens.Token, res *http.Response) error {
	text, reason := said(res, k)
	code := res.StatusCode
	unknown := code == http.StatusUnauthorized ||
		code == http.StatusForbidden && (reason == "AuthenticationFailed" || strings.Contains(text, "failed to authenticate")) // Azurite has another code
	switch {
	case unknown && o.tokens.Refused(k):
		return fmt.Errorf("the credentials have ended or were replaced (%s)", text)
	case unknown, code == http.StatusForbidden, code == http.StatusConflict && reason == "PublicAccessNotPermitted":
		return fmt.Errorf("%w by the server (%s): %s", fs.ErrPermission, text, permissions(k, unknown, reason))
	case code == http.StatusNotFound && reason == "ResourceNotFound" && k.Text == "": // as Azure says to strangers
		return fmt.Errorf("%w by the server, or there is no container %q (%s): %s", fs.ErrPermission, o.source.Container, text, permissions(k, unknown, reason))
	case code == http.StatusNotFound && reason == "ContainerNotFound":
		return fmt.Errorf("container %q (%s): %w", o.source.Container, text, errNoContainer)
	case code == http.StatusNotFound, code == http.StatusGone:
		return fmt.Errorf("it is gone (%s): %w", text, fs.ErrNotExist)
	case code == http.StatusPreconditionFailed:
		return fmt.Errorf("it was replaced: %w", cache.ErrChanged)
	case code == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("it became shorter: %w", cache.ErrChanged)
	case code == http.StatusConflict && (reason == "BlobArchived" || reason == "BlobBeingRehydrated"):
		return fmt.Errorf("%w: it is in the Archive tier (%s): rehydrate it first, which takes hours (az storage blob set-tier --tier Hot), then mount again", fs.ErrInvalid, text)
	case code/100 == 3:
		return fmt.Errorf("%w: the server sends its clients elsewhere (%s), and credentials are for it alone: check the endpoint", fs.ErrInvalid, text)
	case fetch.Lasting(code):
		return fmt.Errorf("%w: the server answers %s: check account, container and endpoint", fs.ErrInvalid, text)
	}
	return fetch.RetryAfter(res.Header, fmt.Errorf("the server answers %s", text))
}

// permissions says what helps a request that was refused.
func permissions(k *tokens.Token, unknown bool, reason string) string {
	const wants = "the role Storage Blob Data Reader"
	switch {
	case k.Text == "":
		return k.None + ": run az login, or set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN; an identity needs " + wants
	case !unknown && (reason == "AuthorizationFailure" || reason == "IpAuthorizationError"):
		return "the account's firewall may refuse this machine's network; if not, " + k.From + " lacks rights"
	case k.Kind == ofKey:
		return "check " + k.From + " and the account's name, and this machine's clock"
	case k.Kind == ofSAS:
		return k.From + " must be in its time, and have the permissions r and l (read, list): make a new one"
	}
	return fmt.Sprintf("give the identity of %s %s on the container", k.From, wants)
}
