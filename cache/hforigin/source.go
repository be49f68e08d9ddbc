package hforigin

import (
	"cmp"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hbmfs/hbmfs/internal/text/address"
)

// Source says which files of the Hub are meant.
type Source struct {
	Kind      string // models, datasets or spaces
	Name      string // ORG/NAME, or NAME alone
	Revision  string // a branch, a tag or a commit
	Path      string // a directory or one file of the repository, "" for all of it
	Endpoint  *url.URL
	Anonymous bool // no token is sent

	options string // names a mirror
}

// Parse reads hf://[datasets/|models/|spaces/]ORG/NAME[@REVISION][/PATH]?KEY=VALUE&...
//
//	endpoint   URL of a mirror; HF_ENDPOINT, or https://huggingface.co
//	anonymous  true: send no token
//
// A slash in a revision is %2F, but in refs/pr/NUMBER and refs/convert/NAME.
func Parse(text string) (Source, error) {
	rest, query, _ := strings.Cut(strings.TrimPrefix(text, "hf://"), "?")
	s := Source{Kind: "models", Revision: "main"}
	wrong := func(format string, args ...any) (Source, error) {
		return s, fmt.Errorf("source %q: %w", "hf://"+rest, fmt.Errorf(format, args...))
	}
	if strings.Contains(text, "#") {
		return wrong("write the # as %%23")
	}
	parts := strings.Split(strings.TrimSuffix(rest, "/"), "/")
	if kind := parts[0]; slices.Contains([]string{"models", "datasets", "spaces"}, kind) {
		s.Kind, parts = kind, parts[1:]
	}
	name := parts[:min(len(parts), 2)]
	if len(parts) > 0 && strings.Contains(parts[0], "@") { // of NAME alone
		name = parts[:1]
	}
	parts = parts[len(name):]
	var revision string
	var given bool
	s.Name, revision, given = strings.Cut(strings.Join(name, "/"), "@")
	if given {
		for refs := []string{"refs", "pr"}; revision == "refs" && len(parts) >= 2 && (parts[0] == refs[1] || parts[0] == "convert"); parts = parts[2:] {
			revision = path.Join(revision, parts[0], parts[1])
		}
		var err error
		if s.Revision, err = url.PathUnescape(revision); err != nil || !regexp.MustCompile(`^[A-Za-z0-9._/+-]{1,255}$`).MatchString(s.Revision) || !fs.ValidPath(s.Revision) {
			return wrong("%q is no revision", revision)
		}
	}
	if !regexp.MustCompile(`^([A-Za-z0-9_.-]{1,96}/)?[A-Za-z0-9_.-]{1,96}$`).MatchString(s.Name) || !fs.ValidPath(s.Name) {
		return wrong("want hf://ORG/NAME or hf://datasets/ORG/NAME, with @REVISION and /PATH where needed")
	}
	var err error
	if s.Path, err = url.PathUnescape(strings.Join(parts, "/")); err != nil || s.Path != "" && !fs.ValidPath(s.Path) {
		return wrong("%q is no path in a repository", strings.Join(parts, "/"))
	}
	if err := s.setOptions(query); err != nil {
		return wrong("%w", err)
	}
	return s, nil
}

// setOptions takes the options of a query, and those of the environment.
func (s *Source) setOptions(query string) error {
	const theHub = "https://huggingface.co"
	endpoint := cmp.Or(os.Getenv("HF_ENDPOINT"), theHub)
	err := address.Options(query, map[string]func(string) error{"endpoint": address.Text(&endpoint), "anonymous": address.Truth(&s.Anonymous)})
	if err != nil {
		return err
	}
	if s.Endpoint, err = address.Server(endpoint); err != nil {
		return fmt.Errorf("the Hub's %w (HF_ENDPOINT, unless the source names it)", err)
	}
	if s.Endpoint.String() != theHub {
		s.options = "?endpoint=" + s.Endpoint.String()
	}
	return nil
}

// repository is the name that the Hub's pages and files have before them.
func (s Source) repository() string {
	if s.Kind == "models" {
		return s.Name
	}
	return s.Kind + "/" + s.Name
}

// at is the source at a revision, without the token.
func (s Source) at(revision string) string {
	text := "hf://" + s.Kind + "/" + s.Name
	if revision != "" {
		text += "@" + strings.ReplaceAll(revision, "/", "%2F")
	}
	if s.Path != "" {
		text += "/" + strings.NewReplacer("%", "%25", "?", "%3F", "#", "%23").Replace(s.Path)
	}
	return text + s.options
}
