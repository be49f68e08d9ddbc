package s3origin

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// noCredentials says in a sentence why the credentials that somebody set up cannot be had. It is an [fs.ErrPermission].
type noCredentials string

func (e noCredentials) Error() string {
	return string(e) + " (anonymous=true in the source asks without credentials)"
}
func (e noCredentials) Is(target error) bool { return target == fs.ErrPermission }

func noCredentialsf(format string, args ...any) error {
	return noCredentials(fmt.Sprintf(format, args...))
}

// credentials looks for credentials as AWS's tools do: environment, web identity (IRSA), shared files, then containers
// and instances. Credentials that somebody set up are used, or are an error: requests are unsigned only where there are
// none.
func (s Source) credentials(transport http.RoundTripper) (*credentials.Credentials, error) {
	if s.Anonymous {
		return anonymous(), nil
	}
	// A service that gives out credentials has no reason to send its clients elsewhere.
	iam := &credentials.IAM{Client: &http.Client{Transport: transport, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if s.Profile == "" {
		switch keys, err := keysInEnvironment(); {
		case err != nil:
			return nil, err
		case keys:
			return credentials.New(&credentials.EnvAWS{}), nil
		}
		if file := os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE"); file != "" {
			return credentials.New(iam), checkWebIdentity(file)
		}
	}
	p, err := findProfile(s.Profile)
	if err != nil {
		return nil, err
	}
	container := os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != ""
	instance := s.Endpoint == "s3.amazonaws.com" && os.Getenv("AWS_EC2_METADATA_DISABLED") != "true"
	switch {
	case p.hasKeys:
		return credentials.New(&proven{Provider: &credentials.FileAWSCredentials{Profile: p.name}, from: p}), nil
	case p.named && !container && !instance:
		return nil, noCredentialsf("%s has no keys, no credential_process and no SSO", p)
	case container, p.named:
		return credentials.New(iam), nil
	case instance:
		return credentials.NewChainCredentials([]credentials.Provider{iam}), nil // unsigned where this is no instance, or has no role
	}
	return anonymous(), nil
}

func anonymous() *credentials.Credentials {
	return credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
}

// keysInEnvironment tells whether the environment has keys, by the names that [credentials.EnvAWS] knows.
func keysInEnvironment() (bool, error) {
	id := cmp.Or(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_ACCESS_KEY"))
	secret := cmp.Or(os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SECRET_KEY"))
	switch {
	case id != "" && secret == "":
		return false, noCredentialsf("AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not: set both, or neither")
	case id == "" && secret != "":
		return false, noCredentialsf("AWS_SECRET_ACCESS_KEY is set and AWS_ACCESS_KEY_ID is not: set both, or neither")
	}
	return id != "", nil
}

// checkWebIdentity refuses a web identity that nobody can have. Later a token that is missing is one that will come.
func checkWebIdentity(file string) error {
	if _, err := os.ReadFile(file); err != nil {
		return noCredentialsf("AWS_WEB_IDENTITY_TOKEN_FILE names a token that cannot be read: %v", err)
	}
	if os.Getenv("AWS_ROLE_ARN") == "" {
		return noCredentialsf("AWS_WEB_IDENTITY_TOKEN_FILE is set and AWS_ROLE_ARN, the role to take with it, is not")
	}
	return nil
}

// proven is a provider whose first failure is final: it was set up wrongly. One that has worked will work again.
type proven struct {
	credentials.Provider
	from   profile
	worked atomic.Bool
}

// RetrieveWithCredContext implements [credentials.Provider].
func (p *proven) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := p.Provider.RetrieveWithCredContext(cc)
	switch {
	case err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "":
		p.worked.Store(true)
		return v, nil
	case err == nil:
		err = fmt.Errorf("it gives no keys")
	}
	said := fmt.Sprintf("%s: %v", p.from, err)
	var bad noCredentials
	if _, why := findProfile(p.from.name); errors.As(why, &bad) { // and shows no line of the file, where the other may show a secret
		said = string(bad)
	}
	if p.worked.Load() {
		return credentials.Value{}, errors.New(said)
	}
	return credentials.Value{}, noCredentials(said)
}

// Retrieve implements [credentials.Provider].
func (p *proven) Retrieve() (credentials.Value, error) { return p.RetrieveWithCredContext(nil) }
