package ociorigin

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hbmfs/hbmfs/internal/text/address"
)

// Source says which artifact is meant.
type Source struct {
	Reference name.Reference // a tag or a digest
	Platform  v1.Platform    // that an index is resolved to
	Anonymous bool           // no login is looked for

	server  server // that is asked
	text    string // REGISTRY/REPO, as it was given
	options string // that name a mirror or a platform
}

// server is a registry by its URL.
type server struct {
	registry name.Registry
	scheme   string // http or https
}

// Parse reads oci://REGISTRY/REPO:TAG or oci://REGISTRY/REPO@DIGEST, with ?KEY=VALUE&...
//
//	platform   OS/ARCHITECTURE[/VARIANT] of an index; this machine's
//	endpoint   URL of a mirror, which is asked in place of the registry
//	anonymous  true: send no login
func Parse(text string) (Source, error) {
	rest, query, _ := strings.Cut(strings.TrimPrefix(text, "oci://"), "?")
	s := Source{Platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}
	wrong := func(err error) (Source, error) { return s, fmt.Errorf("source %q: %w", "oci://"+rest, err) }
	if strings.Contains(text, "#") {
		return wrong(errors.New("a # has no meaning in it"))
	}
	host, _, found := strings.Cut(rest, "/")
	if strings.Contains(strings.SplitN(rest, "@sha256:", 2)[0], "@") { // also where it is a password
		return s, errors.New("source oci://: want oci://REGISTRY/REPO:TAG or @sha256:DIGEST. A login does not belong in a source, where everybody sees it: docker login")
	}
	if !found || host == "" || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return wrong(errors.New("want oci://REGISTRY/REPO:TAG or oci://REGISTRY/REPO@sha256:DIGEST; REGISTRY is a name with a point, such as docker.io or ghcr.io"))
	}
	var err error
	if s.Reference, err = name.ParseReference(rest); err != nil {
		return wrong(errors.New("want a repository in lower case, and a tag or a digest: oci://REGISTRY/REPO:TAG or oci://REGISTRY/REPO@sha256:DIGEST"))
	}
	if repo := s.Reference.Context().RepositoryStr(); !regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`).MatchString(repo) {
		return wrong(fmt.Errorf("%q is no name of a repository", repo)) // as the specification of registries has it
	}
	s.text, _, _ = strings.Cut(rest, "@")
	if i := strings.LastIndexByte(s.text, ':'); i > len(host) {
		s.text = s.text[:i]
	}
	s.server = server{s.Reference.Context().Registry, "https"}
	if address.Loopback(host) {
		s.server.scheme = "http"
	}
	if err := s.setOptions(query); err != nil {
		return wrong(err)
	}
	return s, nil
}

func (s *Source) setOptions(query string) error {
	var endpoint, platform string
	err := address.Options(query, map[string]func(string) error{
		"endpoint": address.Text(&endpoint), "platform": address.Text(&platform), "anonymous": address.Truth(&s.Anonymous),
	})
	if err != nil {
		return err
	}
	var shown []string
	if platform != "" {
		p, err := v1.ParsePlatform(platform)
		if err != nil || p.OS == "" || p.Architecture == "" {
			return fmt.Errorf("option platform=%q: want OS/ARCHITECTURE such as linux/arm64", platform)
		}
		s.Platform = *p
		shown = append(shown, "platform="+p.String())
	}
	if endpoint != "" {
		if s.server, err = parseServer(endpoint); err != nil {
			return err
		}
		shown = append(shown, "endpoint="+s.server.url())
	}
	if len(shown) > 0 {
		s.options = "?" + strings.Join(shown, "&")
	}
	return nil
}

// parseServer reads the URL of a registry.
func parseServer(text string) (server, error) {
	u, err := address.Host(text)
	if err != nil {
		return server{}, fmt.Errorf("the registry's %w", err)
	}
	registry, err := name.NewRegistry(u.Host)
	if err != nil {
		return server{}, fmt.Errorf("the endpoint of a registry: %w", err)
	}
	return server{registry, u.Scheme}, nil
}

func (s server) url() string { return s.scheme + "://" + s.registry.RegistryStr() }

// exposed tells whether others could read a login on its way to a server.
func (s server) exposed() bool { return address.Exposed(s.url()) }

// at is the source at a digest, or at the tag that was given where digest is "".
func (s Source) at(digest string) string {
	sep := "@"
	if tag, ok := s.Reference.(name.Tag); ok && digest == "" {
		return "oci://" + s.text + ":" + tag.TagStr() + s.options
	}
	return "oci://" + s.text + sep + cmp.Or(digest, s.Reference.Identifier()) + s.options
}
