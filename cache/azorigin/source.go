package azorigin

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
	Account   string
	Container string
	Prefix    string // a directory, with or without the slash at its end, or one object
	Endpoint  string // URL of the account, without a slash at its end
	Anonymous bool   // requests carry no credentials

	dir string // the directory that names are relative to: empty, or with a slash at its end
}

const (
	cloud = "core.windows.net" // the suffix of Azure's public cloud
	form  = "az://ACCOUNT/CONTAINER/PREFIX"
)

// Parse reads az://ACCOUNT/CONTAINER/PREFIX?KEY=VALUE&..., or abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, as Hadoop has it.
//
//	endpoint   URL of the account; that of the connection string, or Azure itself
//	anonymous  true: send no credentials
func Parse(text string) (Source, error) {
	u, err := url.Parse(text)
	_, hasPassword := "", false
	if u != nil && u.User != nil {
		_, hasPassword = u.User.Password()
	}
	shown := address.Shown(text)
	switch {
	case hasPassword, strings.Contains(text, "sig="), strings.Contains(strings.ToLower(text), "accountkey="):
		return Source{}, fmt.Errorf("source az://...: credentials do not belong in a source, where everybody sees them: set AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_KEY")
	case err != nil:
		return Source{}, fmt.Errorf("source %q: its address or its options cannot be read", shown)
	case strings.Contains(text, "#"): // the rest would be no part of the path, nor an option
		return Source{}, fmt.Errorf("source %q: write the # as %%23", shown)
	}
	s := Source{}
	if u.Scheme == "az" {
		err = s.plain(u)
	} else {
		err = s.hadoop(u)
	}
	if err != nil {
		return Source{}, fmt.Errorf("source %q: %w", shown, err)
	}
	if err := s.options(u.RawQuery); err != nil {
		return Source{}, fmt.Errorf("source %q: %w", shown, err)
	}
	s.dir = s.Prefix
	if s.dir != "" && !strings.HasSuffix(s.dir, "/") {
		s.dir += "/"
	}
	return s, nil
}

func (s *Source) plain(u *url.URL) error {
	container, prefix, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if u.Host == "" || container == "" || u.User != nil {
		return fmt.Errorf("want %s", form)
	}
	s.Account, s.Container, s.Prefix = u.Host, container, prefix
	return nil
}

// hadoop reads the address of an account by its server for Hadoop. Its server of blobs has the same objects.
func (s *Source) hadoop(u *url.URL) error {
	account, suffix, ok := strings.Cut(u.Host, ".dfs.")
	if !ok {
		account, suffix, ok = strings.Cut(u.Host, ".blob.")
	}
	if !ok || u.User == nil || strings.ContainsAny(suffix, ":/") {
		return fmt.Errorf("want abfss://CONTAINER@ACCOUNT.dfs.%s/PREFIX, or %s", cloud, form)
	}
	s.Account, s.Container, s.Prefix = account, u.User.Username(), strings.TrimPrefix(u.Path, "/")
	if suffix != cloud {
		s.Endpoint = "https://" + account + ".blob." + suffix
	}
	return nil
}

func (s *Source) options(query string) error {
	err := address.Options(query, map[string]func(string) error{"endpoint": address.Text(&s.Endpoint), "anonymous": address.Truth(&s.Anonymous)})
	if err != nil {
		return err
	}
	azures := "https://" + s.Account + ".blob." + cloud
	if s.Endpoint == "" && !s.Anonymous {
		if c, err := parseConnection(os.Getenv(connectionVariable)); err == nil && (c.account == "" || c.account == s.Account) {
			s.Endpoint = c.endpoint
		}
	}
	server, err := address.Server(cmp.Or(s.Endpoint, azures))
	if err == nil {
		s.Endpoint = server.String()
	}
	return err
}

// String is the source as status shows it, and its name in a cache: the place, without the credentials. A slash at the
// end makes no other source.
func (s Source) String() string {
	text := "az://" + s.Account + "/" + s.Container + "/" + strings.TrimSuffix(s.Prefix, "/")
	if s.Endpoint != "https://"+s.Account+".blob."+cloud {
		text += "?endpoint=" + s.Endpoint
	}
	return text
}

// Dir is the directory that names are relative to, empty or with a slash at its end. Listing finds it, where the source may be
// one object.
func (o *Container) Dir() string { return o.source.dir }

// SetDir has the origin, which was listed before by another process, go on with the directory of that one.
func (o *Container) SetDir(dir string) error { o.source.dir = dir; return nil }

// Through returns a getter of the same objects that asks the server at endpoint, a URL, with the origin's credentials.
func (o *Container) Through(endpoint string) (fetch.Getter, error) {
	server, err := address.Server(endpoint)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if address.Exposed(endpoint) && !o.tokens.Anonymous() {
		return nil, fmt.Errorf("cache %q: tokens of Azure would be readable on their way: use https://, or anonymous=true where the container is public", endpoint)
	}
	return &through{o, server.String()}, nil
}

// checkNames refuses names that no account and no container has.
func (s Source) checkNames() error {
	if len(s.Account) < 3 || len(s.Account) > 24 || strings.Trim(s.Account, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("the account's name %.100q is not 3 to 24 of a to z and digits: want %s", s.Account, form)
	}
	switch name := s.Container; {
	case name == "$root", name == "$web", name == "$logs":
	case len(name) < 3, len(name) > 63, strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "", strings.HasPrefix(name, "-"), strings.HasSuffix(name, "-"), strings.Contains(name, "--"):
		return fmt.Errorf("the container's name %.100q is not 3 to 63 of a to z, digits and single -", name)
	}
	return nil
}
