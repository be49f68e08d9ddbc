package gsorigin

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
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

// giver stands for what gives out tokens: Google's OAuth server, the token service of workload identity federation, the service that
// impersonates service accounts, and the metadata server of a machine.
type giver struct {
	*httptest.Server
	lasts  int          // seconds that a token lasts
	asked  atomic.Int64 // tokens that were asked for
	refuse atomic.Value // func(w) bool: answers in its place

	mu    sync.Mutex
	given []string // tokens, the newest last
	saw   []string // of the last requests, that which proves who asks
}

func newGiver(t testing.TB) *giver {
	g := &giver{lasts: 3600}
	g.Server = httptest.NewServer(g)
	t.Cleanup(g.Close)
	return g
}

// ServeHTTP implements [http.Handler].
func (g *giver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := g.asked.Add(1)
	if f, ok := g.refuse.Load().(func(http.ResponseWriter) bool); ok && f(w) {
		return
	}
	token := fmt.Sprintf("ya29.secret-token-%d", n)
	proof := r.FormValue("assertion") + r.FormValue("refresh_token") + r.FormValue("subject_token") + r.Header.Get("Authorization") + r.Header.Get(flavor)
	g.mu.Lock()
	g.given, g.saw = append(g.given, token), append(g.saw, proof)
	g.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	answer := map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": g.lasts}
	switch r.URL.Path {
	case "/token":
	case "/sts":
		answer["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
	case "/impersonate":
		answer = map[string]any{"accessToken": token, "expireTime": time.Now().Add(time.Duration(g.lasts) * time.Second).UTC().Format(time.RFC3339)}
	case "/computeMetadata/v1/instance/service-accounts/default/token":
		w.Header().Set(flavor, "Google")
	default:
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(answer) // they may have hung up
}

// newest is the token that was given last.
func (g *giver) newest() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.given) == 0 {
		return ""
	}
	return g.given[len(g.given)-1]
}

// kinds are files of credentials that have the giver asked, by the secret in each.
func (g *giver) kinds(t testing.TB) map[string]map[string]any {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	subject := filepath.Join(t.TempDir(), "subject")
	write(t, subject, []byte("pod-token-secret"))
	external := map[string]any{
		"type": "external_account", "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k",
		"subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": g.URL + "/sts", "credential_source": map[string]any{"file": subject},
	}
	impersonating := map[string]any{"service_account_impersonation_url": g.URL + "/impersonate"}
	for k, v := range external {
		impersonating[k] = v
	}
	return map[string]map[string]any{
		"service account": {
			"type": "service_account", "client_email": "reader@p.iam.gserviceaccount.com", "private_key_id": "k1", "token_uri": g.URL + "/token",
			"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		},
		"user": {
			"type": "authorized_user", "client_id": "c", "client_secret": "user-secret", "refresh_token": "refresh-secret", "token_uri": g.URL + "/token",
		},
		"workload identity":                   external,
		"workload identity and impersonation": impersonating,
	}
}

func write(t testing.TB, name string, text []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(name+".new", text, 0o600), os.Rename(name+".new", name)); err != nil {
		t.Fatal(err)
	}
}

// use has a file of credentials be the one that is found.
func use(t testing.TB, file map[string]any) (name string) {
	t.Helper()
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	name = filepath.Join(t.TempDir(), "credentials.json")
	write(t, name, text)
	t.(interface{ Setenv(string, string) }).Setenv(variable, name)
	return name
}

// private has a bucket be for those who have the giver's newest token, and have worked says how many requests it has answered.
func private(s *bucketServer, g *giver) {
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		switch token := r.Header.Get("Authorization"); token {
		case "":
			refuse(w, http.StatusUnauthorized, "required", "Anonymous caller does not have storage.objects.list access to the Google Cloud Storage bucket.")
		case "Bearer " + g.newest():
			return false
		default:
			refuse(w, http.StatusUnauthorized, "authError", "Invalid Credentials: "+token)
		}
		return true
	}
}

// TestKindsOfCredentials reads with each, from fakes of the servers that give out tokens.
func TestKindsOfCredentials(t *testing.T) {
	noEnvironment(t)
	g := newGiver(t)
	kinds := g.kinds(t)
	kinds["metadata server"] = nil
	for name, file := range kinds {
		t.Run(name, func(t *testing.T) {
			if file != nil {
				use(t, file)
			} else {
				t.Setenv(metadataVariable, strings.TrimPrefix(g.URL, "http://"))
			}
			s := newServer(t)
			private(s, g)
			s.put("shard", []byte("data"), "")
			o := openAt(t, s.URL, "", fetch.Options{})
			before := g.asked.Load()
			for range 3 {
				l, err := o.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				p := make([]byte, 4)
				if _, err := o.ReadAt(t.Context(), l.Objects[0], p, 0); err != nil || string(p) != "data" {
					t.Fatalf("read %q, %v", p, err)
				}
			}
			want := int64(1)
			if strings.Contains(name, "impersonation") {
				want = 2
			}
			if n := g.asked.Load() - before; n != want {
				t.Errorf("%d tokens were asked for, want %d", n, want)
			}
		})
	}
}

// TestCredentialsEndAndRenew has tokens end while readers read: the origin drops one, and the server no longer takes them.
func TestCredentialsEndAndRenew(t *testing.T) {
	noEnvironment(t)
	g := newGiver(t)
	for kind, file := range g.kinds(t) {
		for _, how := range []string{"dropped", "taken back"} {
			t.Run(kind+" "+how, func(t *testing.T) {
				use(t, file)
				g.lasts = 3600
				s := newServer(t)
				private(s, g)
				data := make([]byte, 64<<10)
				s.put("shard", data, "")
				o := openAt(t, s.URL, "", fetch.Options{})
				l, err := o.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				before := g.asked.Load()
				if how == "dropped" {
					k, err := o.tokens.Get(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					o.tokens.Refused(k)
				} else {
					g.mu.Lock()
					g.given = append(g.given, "another")
					g.mu.Unlock()
				}
				var readers sync.WaitGroup
				for i := range 8 {
					readers.Go(func() {
						if _, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 1000), int64(i)*1000); err != nil {
							t.Error(err)
						}
					})
				}
				readers.Wait()
				if n := g.asked.Load() - before; n < 1 || n > 4 {
					t.Errorf("%d tokens were asked for meanwhile", n)
				}
			})
		}
	}
}

// TestFileIsReplaced has the file of credentials be another when a token is renewed.
func TestFileIsReplaced(t *testing.T) {
	noEnvironment(t)
	g := newGiver(t)
	kinds := g.kinds(t)
	name := use(t, kinds["user"])
	s := newServer(t)
	private(s, g)
	s.put("shard", []byte("data"), "")
	o := openAt(t, s.URL, "", fetch.Options{})
	l, err := o.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "second", "token_uri": g.URL + "/token"})
	if err != nil {
		t.Fatal(err)
	}
	write(t, name, text)
	g.mu.Lock()
	g.given = append(g.given, "another")
	g.mu.Unlock()
	if _, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 4), 0); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if last := g.saw[len(g.saw)-1]; last != "second" {
		t.Errorf("the last token was asked for with %q", last)
	}
}

// TestTokensThatCannotBeHad quotes what users see. No error has a secret in it, though servers repeat them.
func TestTokensThatCannotBeHad(t *testing.T) {
	noEnvironment(t)
	g := newGiver(t)
	kinds := g.kinds(t)
	answer := func(status int, body string) func(http.ResponseWriter) bool {
		return func(w http.ResponseWriter) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
			return true
		}
	}
	echo := strings.Repeat("eyJhbGciOiJSUzI1NiJ9.", 8)
	for name, c := range map[string]struct {
		kind   string
		answer func(http.ResponseWriter) bool
		final  bool
		says   []string
	}{
		"ended login": {"user", answer(400, `{"error":"invalid_grant","error_description":"Token has been expired or revoked."}`), true,
			[]string{"authorized_user", "400 Bad Request (invalid_grant: Token has been expired or revoked.)", "gcloud auth application-default login"}},
		"key repeated": {"service account", answer(400, `{"error":"invalid_grant","error_description":"Invalid JWT `+echo+` Signature."}`), true,
			[]string{"Invalid JWT [...] Signature."}},
		"no pool": {"workload identity", answer(403, `{"error":"unauthorized_client","error_description":"`+echo+`"}`), true, []string{"external_account", "403 Forbidden (unauthorized_client: [...])"}},
		"no right": {"workload identity and impersonation", answer(403, `{"error":{"code":403,"status":"PERMISSION_DENIED","message":"Permission 'iam.serviceAccounts.getAccessToken' denied"}}`), true,
			[]string{"PERMISSION_DENIED", "roles/iam.serviceAccountTokenCreator"}},
		"redirect":  {"user", answer(302, ""), true, []string{"302 Found"}},
		"busy":      {"user", answer(503, echo), false, []string{"503 Service Unavailable"}},
		"no JSON":   {"user", answer(200, echo), true, []string{"authorized_user"}},
		"an array":  {"service account", answer(200, `[]`), true, []string{"service_account"}},
		"no token":  {"workload identity", answer(200, `{}`), true, nil},
		"too large": {"user", answer(200, strings.Repeat("x", 2<<20)), true, []string{"more bytes than any token has"}},
	} {
		t.Run(name, func(t *testing.T) {
			use(t, kinds[c.kind])
			g.refuse.Store(c.answer)
			s := newServer(t)
			s.put("shard", []byte("data"), "")
			private(s, g)
			patience := time.Minute
			if !c.final {
				patience = time.Second
			}
			o := openAt(t, s.URL, "", fetch.Options{Patience: patience, Stall: time.Minute})
			_, err := o.List(t.Context())
			if err == nil || errors.Is(err, fetch.ErrUnreachable) == c.final {
				t.Fatalf("final %v: %v", c.final, err)
			}
			t.Log(err)
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%v does not say %q", err, says)
				}
			}
			for _, secret := range []string{"eyJ", "refresh-secret", "user-secret", "pod-token-secret", "PRIVATE", "assertion"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%v has the secret %q", err, secret)
				}
			}
		})
	}
}

// TestFilesThatAreNone are an error when the source is opened.
func TestFilesThatAreNone(t *testing.T) {
	noEnvironment(t)
	for text, want := range map[string]string{
		"":                        "is not the JSON of",
		`{"private_key": "secret`: "is not the JSON of",
		`{"type": "service_account", "web": {"redirect_uris": ["http://h"]}}`: "is not the JSON of",
		`{}`:                       `has the type ""`,
		`{"type": "gdch_x"}`:       `has the type "gdch_x"`,
		strings.Repeat(" ", 2<<20): "is no file of at most",
	} {
		name := filepath.Join(t.TempDir(), "key.json")
		write(t, name, []byte(text))
		t.Setenv(variable, name)
		s, err := Parse("gs://bucket")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(s, fetch.Options{}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
	t.Setenv(variable, "/nowhere/key.json")
	s, err := Parse("gs://bucket")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s, fetch.Options{}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), variable) {
		t.Error(err)
	}
	s.Anonymous = true
	if o, err := Open(s, fetch.Options{}); err != nil {
		t.Errorf("anonymous=true: %v", err)
	} else if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// TestNoCredentials asks a private bucket without, and under a guard that keeps the metadata server away.
func TestNoCredentials(t *testing.T) {
	noEnvironment(t)
	g := newGiver(t)
	t.Setenv(metadataVariable, strings.TrimPrefix(g.URL, "http://"))
	guard, err := fetch.NewGuard([]string{"127.0.0.2"})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	private(s, g)
	for name, c := range map[string]struct {
		options string
		guard   *fetch.Guard
		want    string
	}{
		"anonymous": {"&anonymous=true", nil, "requests carry no credentials, as the source"},
		"guarded":   {"", guard, "127.0.0.1 is a loopback address"},
	} {
		o := openAt(t, s.URL, c.options, fetch.Options{Guard: c.guard})
		_, err := o.List(t.Context())
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if n := g.asked.Load(); n != 0 {
		t.Errorf("the metadata server was asked %d times", n)
	}
	t.Setenv(metadataVariable, "")
	o := openAt(t, s.URL, "", fetch.Options{})
	o.tokens = tokens.Keep(func(context.Context) (*tokens.Token, error) { return without("no metadata server of Google answers") })
	_, err = o.List(t.Context())
	t.Log(err)
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "gcloud auth application-default login") {
		t.Error(err)
	}
}

// TestTokensGoNowhereElse has servers redirect, and repeat a token.
func TestTokensGoNowhereElse(t *testing.T) {
	noEnvironment(t)
	g := newGiver(t)
	use(t, g.kinds(t)["user"])
	var asked atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer elsewhere.Close()
	s := newServer(t)
	for _, status := range []int{301, 302, 303, 307, 308, 400, 401, 403, 404, 409, 500, 501} {
		s.before = func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Location", elsewhere.URL)
			refuse(w, status, "x", "no "+r.Header.Get("Authorization"))
			return true
		}
		o := openAt(t, s.URL, "", fetch.Options{Patience: 100 * time.Millisecond, Stall: time.Minute})
		_, err := o.List(t.Context())
		if err == nil || strings.Contains(err.Error(), "ya29") {
			t.Errorf("%d: %v", status, err)
		}
	}
	if asked.Load() != 0 {
		t.Errorf("the other server was asked %d times", asked.Load())
	}
	for endpoint, want := range map[string]bool{
		"http://10.0.0.1:80": true, "http://gcs:80": true, "http://localhost:80": false, "http://127.0.0.1": false, "http://[::1]:80": false, "https://gcs": false,
	} {
		if address.Exposed(endpoint) != want {
			t.Errorf("%s: others can read tokens on their way: %v", endpoint, !want)
		}
	}
	o := openAt(t, "https://storage.example", "", fetch.Options{})
	if _, err := o.Through("http://cache:80"); err == nil {
		t.Error("tokens go to a cache in the open")
	}
	if _, err := o.Through("https://cache"); err != nil {
		t.Error(err)
	}
}

// TestRenewingWaitsUnderContexts has a token take forever. Requests end with their contexts.
func TestRenewingWaitsUnderContexts(t *testing.T) {
	noEnvironment(t)
	g := newGiver(t)
	end := make(chan struct{})
	g.refuse.Store(func(http.ResponseWriter) bool { <-end; return false })
	defer close(end)
	use(t, g.kinds(t)["user"])
	s := newServer(t)
	o := openAt(t, s.URL, "", fetch.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for range 3 {
		go func() {
			_, err := o.tokens.Get(ctx)
			done <- err
		}()
	}
	for g.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	for range 3 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
