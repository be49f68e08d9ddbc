package s3origin

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// identity is a machine as AWS's tools see it: variables, and files below a home directory.
type identity struct {
	env   map[string]string
	files map[string]string
	query string // of the source
}

// set makes the machine so for a test, and returns its home directory.
func (id identity) set(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	for name, text := range id.files {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"HOME": home, "AWS_EC2_METADATA_DISABLED": "true"}
	maps.Copy(env, id.env)
	for _, name := range []string{
		"HOME", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_EC2_METADATA_DISABLED",
		"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
	} {
		t.Setenv(name, strings.ReplaceAll(env[name], "~", home))
	}
	return home
}

// asks returns the key id by which a source asks for a listing, "" for none, and the listing's error.
func (id identity) asks(t *testing.T) (as string, err error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, signed, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
		as, _, _ = strings.Cut(signed, "/")
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprint(w, `<ListBucketResult><Name>bucket</Name><KeyCount>1</KeyCount><Contents><Key>shard</Key><Size>4</Size><ETag>"v1"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>`)
	}))
	defer server.Close()
	s, err := Parse("s3://bucket?region=us-east-1&endpoint=" + server.URL + id.query)
	if err != nil {
		t.Fatal(err)
	}
	o, err := Open(s, fetch.Options{Patience: time.Minute})
	if err != nil {
		return "", err
	}
	defer func() { _ = o.Close() }() // only idle connections
	_, err = o.List(t.Context())
	return as, err
}

func keysOf(id string) string {
	return "aws_access_key_id = " + id + "\naws_secret_access_key = secret\n"
}

// TestIdentities tells which keys a source is asked with.
func TestIdentities(t *testing.T) {
	both := map[string]string{".aws/credentials": "[default]\n" + keysOf("DEFAULT") + "[train]\n" + keysOf("TRAIN"), ".aws/config": "[profile conf]\n" + keysOf("CONF") + "[profile train]\nregion = eu-central-1\n"}
	for name, c := range map[string]struct {
		identity
		want string
	}{
		"nothing":                          {identity{}, ""},
		"variables":                        {identity{env: map[string]string{"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "s", "AWS_PROFILE": "nobody", "AWS_CONFIG_FILE": "~/none"}, files: both}, "ENV"},
		"variables of old":                 {identity{env: map[string]string{"AWS_ACCESS_KEY": "ENV", "AWS_SECRET_KEY": "s"}, files: both}, "ENV"},
		"the default profile":              {identity{files: both}, "DEFAULT"},
		"a profile by a variable":          {identity{env: map[string]string{"AWS_PROFILE": "train"}, files: both}, "TRAIN"},
		"a profile by the source":          {identity{env: map[string]string{"AWS_PROFILE": "nobody", "AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "s"}, files: both, query: "&profile=train"}, "TRAIN"},
		"a profile of the config file":     {identity{files: both, query: "&profile=conf"}, "CONF"},
		"the default profile of that file": {identity{files: map[string]string{".aws/config": "[profile default]\n" + keysOf("CONF")}}, "CONF"},
		"files elsewhere":                  {identity{env: map[string]string{"AWS_SHARED_CREDENTIALS_FILE": "~/there", "AWS_CONFIG_FILE": "/dev/null"}, files: map[string]string{"there": "[default]\n" + keysOf("THERE")}}, "THERE"},
		"a process":                        {identity{files: map[string]string{".aws/config": "[default]\ncredential_process = printf {\"Version\":1,\"AccessKeyId\":\"PROCESS\",\"SecretAccessKey\":\"s\",\"Expiration\":\"2099-01-01T00:00:00Z\"}\n"}}, "PROCESS"},
		"settings without keys":            {identity{files: map[string]string{".aws/config": "[default]\nregion = eu-central-1\n[profile x]\n" + keysOf("X")}}, ""},
		"nobody, on request":               {identity{env: map[string]string{"AWS_PROFILE": "nobody", "AWS_CONFIG_FILE": "~/none"}, query: "&anonymous=true"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.set(t)
			if as, err := c.asks(t); err != nil || as != c.want {
				t.Errorf("asked as %q, %v, want %q", as, err, c.want)
			}
		})
	}
}

// TestIdentitiesThatAreNotThere are an error at once, and never requests that are not signed.
func TestIdentitiesThatAreNotThere(t *testing.T) {
	train := map[string]string{".aws/credentials": "[train]\n" + keysOf("TRAIN")}
	for name, c := range map[string]struct {
		identity
		words string // all of them are in the error
	}{
		"a misspelt profile":               {identity{env: map[string]string{"AWS_PROFILE": "trian"}, files: train}, `"trian" ~/.aws/credentials ~/.aws/config train`},
		"a misspelt profile of the source": {identity{files: train, query: "&profile=trian"}, `"trian" ~/.aws/credentials`},
		"a profile, no files":              {identity{query: "&profile=train"}, `"train" ~/.aws/credentials`},
		"a profile, no home":               {identity{env: map[string]string{"HOME": ""}, query: "&profile=train"}, `"train" HOME`},
		"a profile without keys":           {identity{files: map[string]string{".aws/config": "[profile train]\nregion = x\n"}, query: "&profile=train"}, `"train" keys ~/.aws/config`},
		"a profile with a role":            {identity{files: map[string]string{".aws/config": "[profile train]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = x\n"}, query: "&profile=train"}, `"train" role_arn`},
		"the default profile with a role":  {identity{files: map[string]string{".aws/config": "[default]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = x\n"}}, `"default" role_arn`},
		"an id without a secret":           {identity{files: map[string]string{".aws/credentials": "[default]\naws_access_key_id = A\n"}}, `"default" aws_secret_access_key`},
		"a secret without an id":           {identity{files: map[string]string{".aws/credentials": "[default]\naws_secret_access_key = hunter2\n"}}, `"default" aws_access_key_id`},
		"a variable without the other":     {identity{env: map[string]string{"AWS_ACCESS_KEY_ID": "A"}}, "AWS_SECRET_ACCESS_KEY"},
		"the other variable":               {identity{env: map[string]string{"AWS_SECRET_ACCESS_KEY": "hunter2"}}, "AWS_ACCESS_KEY_ID"},
		"a config file that is not there":  {identity{env: map[string]string{"AWS_CONFIG_FILE": "~/none"}, files: train}, "AWS_CONFIG_FILE ~/none"},
		"a keys file that is not there":    {identity{env: map[string]string{"AWS_SHARED_CREDENTIALS_FILE": "~/none"}}, "AWS_SHARED_CREDENTIALS_FILE ~/none"},
		"a file that cannot be read":       {identity{files: map[string]string{".aws/credentials/x": ""}}, "~/.aws/credentials directory"},
		"a file that is none":              {identity{files: map[string]string{".aws/credentials": "[default\nhunter2"}}, "~/.aws/credentials"},
		"a process that fails":             {identity{files: map[string]string{".aws/config": "[default]\ncredential_process = false now\n"}}, `"default" ~/.aws/config`},
		"a process that says nothing":      {identity{files: map[string]string{".aws/config": "[default]\ncredential_process = echo {}\n"}}, `"default" keys`},
		"no login":                         {identity{files: map[string]string{".aws/config": "[profile s]\nsso_start_url = https://x\nsso_region = r\nsso_account_id = 1\nsso_role_name = r\n"}, query: "&profile=s"}, `"s" sso`},
		"a token that is not there":        {identity{env: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "~/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}}, "AWS_WEB_IDENTITY_TOKEN_FILE ~/token"},
		"a token without a role":           {identity{env: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "~/token"}, files: map[string]string{"token": "t"}}, "AWS_ROLE_ARN"},
	} {
		t.Run(name, func(t *testing.T) {
			home := c.set(t)
			as, err := c.asks(t)
			if !errors.Is(err, fs.ErrPermission) || errors.Is(err, fetch.ErrUnreachable) { // which says that it was attempted for long
				t.Fatalf("asked as %q: %v", as, err)
			}
			for word := range strings.FieldsSeq(strings.ReplaceAll(c.words, "~", home)) {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if !strings.Contains(err.Error(), "anonymous=true") {
				t.Errorf("%q does not say how to ask without credentials", err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q shows a secret", err)
			}
		})
	}
}
