package azorigin

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/tokens"
	"github.com/hbmfs/hbmfs/internal/text/address"
)

// Secrets of tests. No error may have one of them in it.
const (
	secretKey = "c2VjcmV0LWtleQ==" // secret-key
	secretSig = "secret%2Bsig%3D"
	secretSAS = "sv=2021-12-02&sp=rl&se=2099-01-01T00:00:00Z&sig=" + secretSig
)

// entra stands for Entra ID, and for the services of a machine that give out tokens.
type entra struct {
	asked  atomic.Int64
	refuse atomic.Value // func(w http.ResponseWriter) bool
	saw    atomic.Value // url.Values of the last request
	lasts  int
}

// RoundTrip implements [http.RoundTripper]: no address is dialled.
func (e *entra) RoundTrip(q *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	e.serve(w, q)
	res := w.Result()
	res.Request = q
	return res, nil
}

func (e *entra) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "/.well-known/openid-configuration") {
		base := "https://" + r.URL.Host + strings.TrimSuffix(r.URL.Path, "/v2.0/.well-known/openid-configuration")
		_, _ = fmt.Fprintf(w, `{"authorization_endpoint":"%[1]s/a","token_endpoint":"%[1]s/oauth2/v2.0/token","issuer":"%[1]s/v2.0"}`, base) // a recorder takes all
		return
	}
	n := e.asked.Add(1)
	if f, ok := e.refuse.Load().(func(http.ResponseWriter) bool); ok && f(w) {
		return
	}
	_ = r.ParseForm() // an empty one fails the test
	saw := r.Form
	saw.Set("metadata", r.Header.Get("Metadata"))
	e.saw.Store(saw)
	answer := map[string]any{"access_token": fmt.Sprint("secret-token-", n), "token_type": "Bearer", "expires_in": e.lasts, "resource": "x"}
	if r.Header.Get("Metadata") != "" {
		answer["expires_in"], answer["expires_on"] = fmt.Sprint(e.lasts), fmt.Sprint(time.Now().Unix()+int64(e.lasts))
	}
	_ = json.NewEncoder(w).Encode(answer) // a recorder takes all
}

// dark stands for services that are not there.
type dark struct{}

func (dark) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("nobody is there")
}

// openWith opens the source with tokens of e.
func openWith(t testing.TB, s *service, e *entra, opt fetch.Options) *Container {
	t.Helper()
	o := openAt(t, s.URL, "", opt)
	a := &asker{source: o.source, client: e, direct: e}
	o.tokens = tokens.Keep(a.fresh)
	return o
}

// guard has a service take only what the newest token, key or SAS has. Refusals are Azure's.
func guard(s *service, allowed func(r *http.Request) bool) {
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		switch given := r.Header.Get("Authorization"); {
		case allowed(r):
			return false
		case strings.HasPrefix(given, "Bearer "):
			refuse(w, http.StatusUnauthorized, "InvalidAuthenticationInfo", "Server failed to authenticate the request. "+given)
		case given != "" || r.FormValue("sig") != "":
			refuse(w, http.StatusForbidden, "AuthenticationFailed", "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly including the signature.",
				"<AuthenticationErrorDetail>Signature did not match. String to sign used was "+strings.ReplaceAll(r.URL.RawQuery, "&", "&amp;")+" "+given+"</AuthenticationErrorDetail>")
		default:
			refuse(w, http.StatusUnauthorized, "NoAuthenticationInformation", "Server failed to authenticate the request.")
		}
		return true
	}
}

func wantClean(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, secret := range []string{secretKey, secretSig, "secret+sig=", "secret-token", "client-secret", "secret-key"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q is in the error: %v", secret, err)
		}
	}
}

// TestKindsOfCredentials reads with each kind of credentials, and shows what a request carries.
func TestKindsOfCredentials(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("federated-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "connection")
	if err := os.WriteFile(file, []byte("AccountKey="+secretKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bySAS := func(r *http.Request) bool {
		return r.URL.Query().Get("sig") == "secret+sig=" && r.URL.Query().Get("sp") == "rl"
	}
	byKey := func(r *http.Request) bool {
		key, sum, ok := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "SharedKey "), ":")
		mac, err := base64.StdEncoding.DecodeString(sum)
		return ok && key == "account" && err == nil && len(mac) == 32
	}
	byToken := func(r *http.Request) bool {
		return strings.HasPrefix(r.Header.Get("Authorization"), "Bearer secret-token-")
	}
	id := fmt.Sprint("client-", time.Now().UnixNano()) // of this run alone
	for name, c := range map[string]struct {
		env     map[string]string
		allowed func(r *http.Request) bool
		saw     map[string]string // fields of the request to Entra ID
	}{
		"key":                     {map[string]string{keyVariable: secretKey}, byKey, nil},
		"key, another name":       {map[string]string{keyVariable2: secretKey}, byKey, nil},
		"SAS":                     {map[string]string{sasVariable: "?" + secretSAS}, bySAS, nil},
		"connection string, key":  {map[string]string{connectionVariable: "DefaultEndpointsProtocol=https;AccountName=account;AccountKey=" + secretKey + ";EndpointSuffix=core.windows.net"}, byKey, nil},
		"connection string, SAS":  {map[string]string{connectionVariable: "BlobEndpoint=https://account.blob.core.windows.net/;SharedAccessSignature=" + secretSAS}, bySAS, nil},
		"connection string, file": {map[string]string{fileVariable: file}, byKey, nil},
		"an account, and its key": {map[string]string{accountVariable: "account", keyVariable: secretKey}, byKey, nil},
		"a client and its secret": {map[string]string{"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_CLIENT_SECRET": "client-secret"}, byToken, map[string]string{"client_secret": "client-secret", "scope": scope + " openid offline_access profile"}},
		"workload identity":       {map[string]string{"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_FEDERATED_TOKEN_FILE": token}, byToken, map[string]string{"client_assertion": "federated-token"}},
		"managed identity":        {map[string]string{"AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential"}, byToken, map[string]string{}}, // which the library keeps for the process
		"managed identity, by ID": {map[string]string{"AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential", "AZURE_CLIENT_ID": id}, byToken, map[string]string{"metadata": "true", "resource": "https://storage.azure.com", "client_id": id}},
	} {
		t.Run(name, func(t *testing.T) {
			noEnvironment(t)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			s, e := newService(t), &entra{lasts: 3600}
			s.put("shard", stored{data: []byte("data")})
			guard(s, c.allowed)
			o := openWith(t, s, e, fetch.Options{})
			l, err := o.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 4), 0); err != nil {
				t.Error(err)
			}
			saw, _ := e.saw.Load().(url.Values)
			for name, want := range c.saw {
				if got := saw.Get(name); got != want {
					t.Errorf("Entra ID sees %s=%q, want %q", name, got, want)
				}
			}
			if n := e.asked.Load(); c.saw == nil && n != 0 {
				t.Errorf("Entra ID was asked %d times", n)
			}
		})
	}
}

// TestWrongCredentials has credentials that cannot be used. The errors name them, and no secret.
func TestWrongCredentials(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"wrong key":               {map[string]string{keyVariable: secretKey}, "check the account's key (AZURE_STORAGE_KEY) and the account's name, and this machine's clock"},
		"wrong SAS":               {map[string]string{sasVariable: secretSAS}, "must be in its time, and have the permissions r and l"},
		"no key":                  {map[string]string{keyVariable: "secret-key!"}, "is not in base64"},
		"no SAS":                  {map[string]string{sasVariable: "secret-key"}, "want sv=...&sig=..."},
		"no connection":           {map[string]string{connectionVariable: "secret-key"}, "is not of the form NAME=VALUE"},
		"nothing in it":           {map[string]string{connectionVariable: "AccountName=account"}, "neither AccountKey nor SharedAccessSignature"},
		"the emulator":            {map[string]string{connectionVariable: "UseDevelopmentStorage=true"}, "write its BlobEndpoint"},
		"another account":         {map[string]string{connectionVariable: "AccountName=other;AccountKey=" + secretKey}, `is of the account "other", and the source of "account"`},
		"another account's key":   {map[string]string{accountVariable: "other", keyVariable: secretKey}, `AZURE_STORAGE_KEY is of the account "other"`},
		"no file":                 {map[string]string{fileVariable: "/nowhere/x"}, "names a file that cannot be used"},
		"no file but a directory": {map[string]string{fileVariable: "/"}, "is no file of at most"},
		"no token file":           {map[string]string{"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_FEDERATED_TOKEN_FILE": "/nowhere/token"}, "/nowhere/token"},
		"no certificate":          {map[string]string{"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_CLIENT_CERTIFICATE_PATH": "/nowhere/pem", "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}, "AZURE_CLIENT_CERTIFICATE_PATH names cannot be used"},
		"a member that is none":   {map[string]string{"AZURE_TOKEN_CREDENTIALS": "some"}, "AZURE_TOKEN_CREDENTIALS"},
		"none":                    {nil, "no credentials were found"},
		"a refused client":        {map[string]string{"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_CLIENT_SECRET": "client-secret"}, "the secret, the certificate or the token of the identity is wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			noEnvironment(t)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			s, e := newService(t), &entra{lasts: 3600}
			e.refuse.Store(func(w http.ResponseWriter) bool {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = fmt.Fprint(w, `{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret provided: client-secret-of-forty-characters-or-some-more."}`)
				return true
			})
			s.put("shard", stored{data: []byte("data")})
			guard(s, func(*http.Request) bool { return false })
			source, err := Parse("az://account/container?endpoint=" + s.URL + "/account")
			if err != nil {
				t.Fatal(err)
			}
			o, err := Open(source, fetch.Options{})
			if err == nil {
				defer func() { _ = o.Close() }() // only idle connections
				o.tokens = tokens.Keep((&asker{source: source, client: e, direct: dark{}}).fresh)
				_, err = o.List(t.Context())
			}
			t.Log(err)
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			wantClean(t, err)
		})
	}
}

// TestCredentialsEndAndRenew has the service take back tokens and keys while readers read.
func TestCredentialsEndAndRenew(t *testing.T) {
	for _, kind := range []string{"token", "key", "SAS"} {
		t.Run(kind, func(t *testing.T) {
			noEnvironment(t)
			s, e := newService(t), &entra{lasts: 3600}
			s.put("shard", stored{data: make([]byte, 64<<10)})
			file := filepath.Join(t.TempDir(), "connection")
			write := func(n int) {
				text := map[string]string{"key": "AccountKey=" + base64.StdEncoding.EncodeToString([]byte(fmt.Sprint("secret-key", n))), "SAS": fmt.Sprint("SharedAccessSignature=sv=1&sig=", n)}[kind]
				if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
					t.Error(err)
				}
				if err := os.Rename(file+".new", file); err != nil {
					t.Error(err)
				}
			}
			if kind == "token" {
				for name, value := range map[string]string{"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_CLIENT_SECRET": "client-secret"} {
					t.Setenv(name, value)
				}
			} else {
				t.Setenv(fileVariable, file)
				write(1)
			}
			var newest atomic.Int64
			newest.Store(1)
			guard(s, func(r *http.Request) bool {
				n := newest.Load()
				switch kind {
				case "token":
					return r.Header.Get("Authorization") == fmt.Sprint("Bearer secret-token-", n)
				case "SAS":
					return r.FormValue("sig") == fmt.Sprint(n)
				}
				given := r.Clone(r.Context())
				given.Header.Del("Authorization")
				given.Header.Del("Accept-Encoding")
				k, err := newKey(base64.StdEncoding.EncodeToString([]byte(fmt.Sprint("secret-key", n))), "a test")
				if err != nil || carry(given, k, "account") != nil {
					t.Error(err)
				}
				return r.Header.Get("Authorization") == given.Header.Get("Authorization")
			})
			o := openWith(t, s, e, fetch.Options{})
			l, err := o.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			newest.Store(2)
			var readers sync.WaitGroup
			for i := range 8 {
				readers.Go(func() {
					if _, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 1000), int64(i)*1000); err != nil {
						t.Error(err)
					}
				})
			}
			if kind != "token" {
				write(2)
			}
			readers.Wait()
			if n := e.asked.Load(); kind == "token" && n != 2 {
				t.Errorf("Entra ID was asked %d times", n)
			}
		})
	}
}

// TestSecretsGoNowhereElse has servers redirect and repeat secrets, and endpoints where others could read them.
func TestSecretsGoNowhereElse(t *testing.T) {
	noEnvironment(t)
	t.Setenv(sasVariable, secretSAS)
	var asked atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer elsewhere.Close()
	s := newService(t)
	for _, status := range []int{301, 302, 303, 307, 308, 400, 401, 403, 404, 409, 500, 501} {
		s.before = func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Location", elsewhere.URL)
			refuse(w, status, "Sig"+r.FormValue("sig"), "no "+strings.ReplaceAll(r.URL.RawQuery, "&", "&amp;")+" and "+r.FormValue("sig"))
			return true
		}
		o := openAt(t, s.URL, "", fetch.Options{Patience: 100 * time.Millisecond, Stall: time.Minute})
		_, err := o.List(t.Context())
		if err == nil {
			t.Errorf("%d is taken for an answer", status)
		}
		wantClean(t, err)
	}
	if asked.Load() != 0 {
		t.Errorf("the other server was asked %d times", asked.Load())
	}
	for endpoint, want := range map[string]bool{
		"http://10.0.0.1:80/account": true, "http://azurite:10000/account": true, "http://localhost:80/account": false, "http://127.0.0.1": false, "http://[::1]:80": false, "https://h": false,
	} {
		if address.Exposed(endpoint) != want {
			t.Errorf("%s: others can read tokens on their way: %v", endpoint, !want)
		}
	}
	open, err := Parse("az://account/container?endpoint=http://azurite:10000/account")
	if err != nil {
		t.Fatal(err)
	}
	if k, err := (&asker{source: open}).fresh(t.Context()); err != nil || k.Text != "" {
		t.Errorf("a SAS goes to a server in the open: %v", err)
	}
	t.Setenv(keyVariable, secretKey)
	if k, err := (&asker{source: open}).fresh(t.Context()); err != nil || k.Kind != ofKey { // only a signature goes there
		t.Errorf("a key signs nothing for a server in the open: %v", err)
	}
	o := openAt(t, "https://storage.example", "", fetch.Options{})
	if _, err := o.Through("http://cache:80"); err == nil {
		t.Error("tokens go to a cache in the open")
	}
	if _, err := o.Through("https://cache"); err != nil {
		t.Error(err)
	}
}

// TestStringToSign signs the example of Microsoft's page on Shared Key, in its form of a listing.
func TestStringToSign(t *testing.T) {
	q, err := http.NewRequest(http.MethodGet, "https://myaccount.blob.core.windows.net/mycontainer?comp=metadata&restype=container&timeout=20", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("X-Ms-Date", "Fri, 26 Jun 2015 23:39:12 GMT")
	q.Header.Set("X-Ms-Version", "2015-02-21")
	want := "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n/myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
	if got := toSign(q, "myaccount"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTheChainMayLoseItsWay has a machine's service be silent after it has given a token. The next attempt may find it again.
func TestTheChainMayLoseItsWay(t *testing.T) {
	noEnvironment(t)
	a := &asker{source: Source{Account: "account", Container: "container", Endpoint: "https://h"}, client: dark{}, direct: dark{}}
	a.worked.Store(true)
	_, err := a.fresh(t.Context())
	t.Log(err)
	if err == nil || errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}
