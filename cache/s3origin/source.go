package s3origin

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/hbmfs/hbmfs/internal/text/address"
)

// Source says where the objects are.
type Source struct {
	Bucket    string
	Prefix    string // a directory, with or without the slash at its end, or one object
	Endpoint  string // host or host:port
	Secure    bool   // https
	Region    string // "" where the server is asked
	PathStyle bool   // the bucket is in the path and not in the host's name
	Anonymous bool   // requests are not signed
	Profile   string // of the shared credentials file

	Caches string // URLs of servers that are asked before Endpoint is, with commas between them

	dir string // the directory that names are relative to: empty, or with a slash at its end
}

// Parse reads s3://BUCKET/PREFIX?KEY=VALUE&...
//
//	endpoint    URL of the server; AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or AWS itself. Several, with commas
//	            between them, and where there is an origin: caches before it
//	origin      URL of the server behind the caches, or "aws"
//	region      AWS_REGION, AWS_DEFAULT_REGION, or what the server says
//	path_style  true or false; true where an endpoint is named
//	anonymous   true: do not sign requests
//	profile     of ~/.aws/credentials; AWS_PROFILE
func Parse(text string) (Source, error) {
	shown := address.Shown(text)
	u, err := parseURL(text)
	if err != nil {
		return Source{}, fmt.Errorf("source %q: %w", shown, err)
	}
	s := Source{Bucket: u.Host, Prefix: strings.TrimPrefix(u.Path, "/"), Secure: true}
	s.Region = cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	endpoint := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"))
	origin, style := "", (*bool)(nil)
	err = address.Options(u.RawQuery, map[string]func(string) error{
		"endpoint": address.Text(&endpoint), "origin": address.Text(&origin), "region": address.Text(&s.Region), "profile": address.Text(&s.Profile),
		"anonymous": address.Truth(&s.Anonymous), "path_style": func(value string) error {
			if value == "" { // as if it were not there
				return nil
			}
			style = new(bool)
			return address.Truth(style)(value)
		},
	})
	if err != nil {
		return Source{}, fmt.Errorf("source %q: %w", shown, err)
	}
	if endpoint, err = s.setCaches(endpoint, origin); err != nil {
		return Source{}, fmt.Errorf("source %q: %w", shown, err)
	}
	if err := s.setEndpoint(endpoint); err != nil {
		return Source{}, fmt.Errorf("source %q: %w", shown, err)
	}
	if style != nil {
		s.PathStyle = *style
	}
	s.dir = s.Prefix
	if s.dir != "" && !strings.HasSuffix(s.dir, "/") {
		s.dir += "/"
	}
	return s, nil
}

// parseURL reads the address of a source.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil: // whose text may have a secret in it
		return nil, errors.New("it cannot be read: want s3://BUCKET/PREFIX")
	case u.Scheme != "s3" || u.Host == "":
		return nil, errors.New("want s3://BUCKET/PREFIX")
	case u.User != nil:
		return nil, errors.New("credentials do not belong in a source, where everybody sees them: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case strings.Contains(text, "#"): // the rest would be no part of the path, nor an option
		return nil, errors.New("write the # as %23")
	}
	return u, nil
}

// setCaches takes the option endpoint for caches where there is an origin, and gives the server behind them.
func (s *Source) setCaches(endpoint, origin string) (server string, err error) {
	switch {
	case origin == "" && strings.Contains(endpoint, ","):
		return "", errors.New("several endpoints are caches: name the server behind them by origin=https://HOST, or origin=aws")
	case origin == "":
		return endpoint, nil
	case endpoint == "":
		return "", errors.New("option origin stands behind caches: name them by endpoint=http://HOST:PORT,http://HOST:PORT")
	}
	s.Caches = endpoint
	if origin == "aws" {
		return "", nil
	}
	return origin, nil
}

// setEndpoint takes the URL of a server, empty for AWS.
func (s *Source) setEndpoint(endpoint string) error {
	s.Endpoint = "s3.amazonaws.com"
	if endpoint == "" {
		return nil
	}
	e, err := address.Host(endpoint)
	if err != nil {
		return err
	}
	s.Endpoint, s.Secure, s.PathStyle = e.Host, e.Scheme == "https", true
	return nil
}

// String is the source as status shows it, and its name in a cache: the place, without the credentials. A slash at the
// end makes no other source.
func (s Source) String() string {
	text := "s3://" + s.Bucket + "/" + strings.TrimSuffix(s.Prefix, "/")
	if s.Endpoint != "s3.amazonaws.com" {
		scheme := "http"
		if s.Secure {
			scheme = "https"
		}
		text += "?endpoint=" + scheme + "://" + s.Endpoint
	}
	return text
}
