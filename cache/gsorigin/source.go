package gsorigin

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/text/address"
)

// Source says where the objects are.
type Source struct {
	Bucket    string
	Prefix    string // a directory, with or without the slash at its end, or one object
	Endpoint  string // URL of the server
	Anonymous bool   // requests carry no credentials
	Project   string // that pays for the requests, "" for the bucket's own

	dir string // the directory that names are relative to: empty, or with a slash at its end
}

// emulator is the variable by which Google's clients find a server for tests, which wants no credentials.
const emulator = "STORAGE_EMULATOR_HOST"

const googles = "https://storage.googleapis.com"

// Parse reads gs://BUCKET/PREFIX?KEY=VALUE&...
//
//	endpoint      URL of the server; STORAGE_EMULATOR_HOST (without credentials), or Google itself
//	anonymous     true: send no credentials
//	user_project  the project that pays, where the bucket's requester does
func Parse(text string) (Source, error) {
	shown := address.Shown(text)
	u, err := url.Parse(text)
	switch {
	case err != nil: // whose text may have a secret in it
		return Source{}, fmt.Errorf("source %q: it cannot be read: want gs://BUCKET/PREFIX", shown)
	case u.Scheme != "gs" || u.Host == "":
		return Source{}, fmt.Errorf("source %q: want gs://BUCKET/PREFIX", shown)
	case u.User != nil:
		return Source{}, fmt.Errorf("source %q: credentials do not belong in a source, where everybody sees them: name a file of them by GOOGLE_APPLICATION_CREDENTIALS", shown)
	case strings.Contains(text, "#"): // the rest would be no part of the path, nor an option
		return Source{}, fmt.Errorf("source %q: write the # as %%23", shown)
	}
	s := Source{Bucket: u.Host, Prefix: strings.TrimPrefix(u.Path, "/")}
	err = address.Options(u.RawQuery, map[string]func(string) error{
		"endpoint": address.Text(&s.Endpoint), "user_project": address.Text(&s.Project), "anonymous": address.Truth(&s.Anonymous),
	})
	if err != nil {
		return Source{}, fmt.Errorf("source %q: %w", shown, err)
	}
	if host := os.Getenv(emulator); s.Endpoint == "" && host != "" {
		if !strings.Contains(host, "://") {
			host = "http://" + host
		}
		s.Endpoint, s.Anonymous = host, true
	}
	server, err := address.Host(cmp.Or(s.Endpoint, googles))
	if err != nil {
		return Source{}, fmt.Errorf("source %q: %w", shown, err)
	}
	s.Endpoint = server.String()
	s.dir = s.Prefix
	if s.dir != "" && !strings.HasSuffix(s.dir, "/") {
		s.dir += "/"
	}
	return s, nil
}

// String is the source as status shows it, and its name in a cache: the place, without the credentials. A slash at the
// end makes no other source.
func (s Source) String() string {
	text := "gs://" + s.Bucket + "/" + strings.TrimSuffix(s.Prefix, "/")
	if s.Endpoint != googles {
		text += "?endpoint=" + s.Endpoint
	}
	return text
}

// Dir is the directory that names are relative to, empty or with a slash at its end. Listing finds it, where the source may be
// one object.
func (o *Bucket) Dir() string { return o.source.dir }

// SetDir has the origin, which was listed before by another process, go on with the directory of that one.
func (o *Bucket) SetDir(dir string) error { o.source.dir = dir; return nil }

// Through returns a getter of the same objects that asks the server at endpoint, a URL, with the origin's credentials.
func (o *Bucket) Through(endpoint string) (fetch.Getter, error) {
	server, err := address.Host(endpoint)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if address.Exposed(endpoint) && !o.tokens.Anonymous() {
		return nil, fmt.Errorf("cache %q: tokens of Google would be readable on their way: use https://, or anonymous=true where the bucket is public", endpoint)
	}
	return &through{o, server.String()}, nil
}
