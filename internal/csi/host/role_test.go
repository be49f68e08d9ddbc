package host

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// TestRoleOfAPod has the token of a pod's service account exchanged for a role of AWS, and for an identity at Google and at Azure. Each new token that kubelet
// brings takes the old one's place. The token services are fakes behind a proxy.
func TestRoleOfAPod(t *testing.T) {
	const pool = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/cluster"
	const client = "00000000-0000-4000-8000-00000000000a"
	for name, c := range map[string]podRole{
		"AWS": {"s3://bucket?region=us-east-1&endpoint=", []string{"roleArn", "arn:aws:iam::1:role/reader"}, "sts.amazonaws.com", "arn:aws:iam::1:role/reader", []string{"InvalidIdentityToken", "trust policy"}},
		"Google": {"gs://bucket?endpoint=", []string{"workloadIdentityProvider", pool, "googleServiceAccount", "reader@project.iam.gserviceaccount.com"}, "https:" + pool, pool,
			[]string{"sts.googleapis.com", "invalid_grant"}},
		"Google, by itself": {"gs://bucket?endpoint=", []string{"workloadIdentityProvider", pool}, pool, pool, []string{"sts.googleapis.com", "invalid_grant"}},
		"Azure": {"az://account/bucket?endpoint=", []string{"azureClientId", client, "azureTenantId", "contoso.com"}, "api://AzureADTokenExchange", "contoso.com " + client,
			[]string{"login.microsoftonline.com", "AADSTS700213"}},
		"Azure, as Hadoop has it": {"abfss://bucket@account.dfs.core.windows.net?endpoint=", []string{"azureClientId", client, "azureTenantId", "contoso.com"}, "api://AzureADTokenExchange", "contoso.com " + client,
			[]string{"login.microsoftonline.com", "AADSTS700213"}},
	} {
		t.Run(name, func(t *testing.T) { c.test(t) })
	}
}

// podRole is an origin that takes tokens of pods.
type podRole struct {
	source     string
	attributes []string
	audience   string // of the token that kubelet brings
	asked      string // of the token service
	refusal    []string
}

func (c podRole) test(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serveBucket(w, r, n.data) }))
	defer store.Close()
	sts := newTokenService(t)
	n.endHost()
	t.Setenv("HTTPS_PROXY", sts.proxy)
	t.Setenv("SSL_CERT_FILE", sts.authority)
	for _, name := range []string{"NO_PROXY", "no_proxy", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		t.Setenv(name, "")
	}
	n.startHost()

	publish := func(pod, token string) error {
		return n.publish("v", pod, append(c.attributes,
			"source", c.source+store.URL, "patience", "20s",
			"csi.storage.k8s.io/pod.namespace", "team", "csi.storage.k8s.io/serviceAccount.name", "trainer",
			"csi.storage.k8s.io/serviceAccount.tokens", fmt.Sprintf(`{%q:{"token":%q}}`, c.audience, token))...)
	}
	n.code(publish("p1", "forged"), codes.PermissionDenied, c.refusal...)
	n.must(publish("p1", "first-token"))
	n.must(publish("p2", "first-token")) // another pod of the account
	if d := n.daemons(); len(d) != 1 || !n.reads(n.target("p2"), "a.bin") {
		t.Errorf("daemons %v, or the volume cannot be read", d)
	}
	if asked := sts.asked(); len(asked) == 0 || asked[0] != c.asked+" forged" || asked[len(asked)-1] != c.asked+" first-token" {
		t.Errorf("the token service was asked %q", asked)
	}
	n.must(publish("p1", "second-token"))
	before := len(sts.asked())
	old := n.daemons()[0]
	n.killHeld() // the next one knows no token but that of the file
	n.within("the next daemon serves", func() bool {
		d := n.daemons()
		return len(d) == 1 && d[0] != old && n.reads(n.target("p1"), "a.bin")
	})
	if asked := sts.asked()[before:]; len(asked) == 0 || !strings.HasSuffix(asked[0], " second-token") {
		t.Errorf("with a new token the token service was asked %q", asked)
	}
	n.hasNot("second-token", "secret-of-the-role", "session-of-the-role")
	n.must(n.unpublish("v", "p1"))
	n.must(n.unpublish("v", "p2"))
	n.clean()
}

// hasNot looks for secrets where nobody should find them: on command lines, in environments, records, logs and statuses.
func (n *node) hasNot(secrets ...string) {
	n.Helper()
	var places []string
	for _, pid := range n.daemons() {
		places = append(places, fmt.Sprintf("/proc/%d/cmdline", pid), fmt.Sprintf("/proc/%d/environ", pid))
	}
	volumes, err := filepath.Glob(filepath.Join(n.state(), "volumes/*"))
	n.must(err)
	for _, dir := range volumes {
		for _, name := range []string{"volume.json", "log", "mnt/.hbmfs/status", "mnt/.hbmfs/metrics"} {
			places = append(places, filepath.Join(dir, name))
		}
	}
	if len(places) != 6 {
		n.Errorf("looked at %q", places)
	}
	for _, place := range places {
		text, err := os.ReadFile(place)
		n.must(err)
		for _, s := range secrets {
			if bytes.Contains(text, []byte(s)) {
				n.Errorf("%s shows a secret", place)
			}
		}
	}
}

// serveBucket is a bucket with the files of a directory, for whoever has taken the role.
func serveBucket(w http.ResponseWriter, r *http.Request, dir string) {
	if strings.HasPrefix(r.URL.Path, "/storage/v1/") {
		serveGoogle(w, r, dir)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/bucket") && r.Header.Get("X-Ms-Version") != "" {
		serveAzure(w, r, dir)
		return
	}
	if !strings.Contains(r.Header.Get("Authorization"), "Credential=key-of-the-role/") || r.Header.Get("X-Amz-Security-Token") != "session-of-the-role" {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "<Error><Code>AccessDenied</Code></Error>")
		return
	}
	if r.URL.Query().Has("list-type") {
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprint(w, `<ListBucketResult><Name>bucket</Name><KeyCount>1</KeyCount><Contents><Key>a.bin</Key><Size>11</Size><ETag>"v1"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>`)
		return
	}
	serveFile(w, r, dir)
}

// serveGoogle is serveBucket as Google has it.
func serveGoogle(w http.ResponseWriter, r *http.Request, dir string) {
	w.Header().Set("X-Goog-Generation", "1")
	switch {
	case r.Header.Get("Authorization") != "Bearer session-of-the-role":
		w.WriteHeader(http.StatusForbidden)
	case strings.HasSuffix(r.URL.Path, "/o"):
		fmt.Fprint(w, `{"kind": "storage#objects", "items": [{"name": "a.bin", "size": "11", "generation": "1", "updated": "2026-01-01T00:00:00Z"}]}`)
	default:
		serveFile(w, r, dir)
	}
}

// serveAzure is serveBucket as Azure has it.
func serveAzure(w http.ResponseWriter, r *http.Request, dir string) {
	switch {
	case r.Header.Get("Authorization") != "Bearer session-of-the-role":
		w.WriteHeader(http.StatusForbidden)
	case r.URL.Query().Get("comp") == "list":
		fmt.Fprint(w, `<EnumerationResults><Blobs><Blob><Name>a.bin</Name><Properties><Etag>v1</Etag><Content-Length>11</Content-Length></Properties></Blob></Blobs></EnumerationResults>`)
	default:
		serveFile(w, r, dir)
	}
}

func serveFile(w http.ResponseWriter, r *http.Request, dir string) {
	f, err := os.Open(filepath.Join(dir, filepath.Base(r.URL.Path)))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer func() { _ = f.Close() }() // opened for reading
	w.Header().Set("ETag", `"v1"`)
	http.ServeContent(w, r, "", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), f)
}

// tokenService is a fake of AWS's, Google's and Azure's, at their own addresses, for those who go through the proxy and trust its authority.
type tokenService struct {
	proxy, authority string

	mu     sync.Mutex
	tokens []string
}

func (s *tokenService) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.tokens...)
}

func (s *tokenService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.Host, ".googleapis.com"):
		s.google(w, r)
		return
	case r.Host == "login.microsoftonline.com":
		s.azure(w, r)
		return
	}
	if err := r.ParseForm(); err != nil || r.Host != "sts.amazonaws.com" || r.Form.Get("Action") != "AssumeRoleWithWebIdentity" {
		http.Error(w, "not what it is for", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.tokens = append(s.tokens, r.Form.Get("RoleArn")+" "+r.Form.Get("WebIdentityToken"))
	s.mu.Unlock()
	if r.Form.Get("WebIdentityToken") == "forged" {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>InvalidIdentityToken</Code><Message>no</Message></Error></ErrorResponse>`)
		return
	}
	fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>key-of-the-role</AccessKeyId><SecretAccessKey>secret-of-the-role</SecretAccessKey><SessionToken>session-of-the-role</SessionToken><Expiration>%s</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

// google gives a token of the pool for one of a pod, and one of a service account for that. Both are the same where no service account is asked for.
func (s *tokenService) google(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Host == "iamcredentials.googleapis.com" {
		if r.Header.Get("Authorization") != "Bearer session-of-the-role" || r.URL.Path != "/v1/projects/-/serviceAccounts/reader@project.iam.gserviceaccount.com:generateAccessToken" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"accessToken": "session-of-the-role", "expireTime": %q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		return
	}
	token := r.FormValue("subject_token")
	s.mu.Lock()
	s.tokens = append(s.tokens, r.FormValue("audience")+" "+token)
	s.mu.Unlock()
	if token == "forged" {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error": "invalid_grant", "error_description": "The audience in ID Token does not match."}`)
		return
	}
	fmt.Fprint(w, `{"access_token": "session-of-the-role", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "token_type": "Bearer", "expires_in": 3600}`)
}

// azure gives a token of Entra ID for one of a pod.
func (s *tokenService) azure(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	tenant, what, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if what == "v2.0/.well-known/openid-configuration" {
		base := "https://" + r.Host + "/" + tenant
		fmt.Fprintf(w, `{"authorization_endpoint": %q, "token_endpoint": %q, "issuer": %q}`, base+"/oauth2/v2.0/authorize", base+"/oauth2/v2.0/token", base+"/v2.0")
		return
	}
	token := r.FormValue("client_assertion")
	s.mu.Lock()
	s.tokens = append(s.tokens, tenant+" "+r.FormValue("client_id")+" "+token)
	s.mu.Unlock()
	if token == "forged" || what != "oauth2/v2.0/token" || r.FormValue("grant_type") != "client_credentials" || !strings.HasPrefix(r.FormValue("scope"), "https://storage.azure.com/.default") {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error": "invalid_client", "error_description": "AADSTS700213: No matching federated identity record found for presented assertion subject."}`)
		return
	}
	fmt.Fprint(w, `{"access_token": "session-of-the-role", "token_type": "Bearer", "expires_in": 3600}`)
}

func newTokenService(t *testing.T) *tokenService {
	s := &tokenService{authority: filepath.Join(t.TempDir(), "authority.pem")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"sts.amazonaws.com", "sts.googleapis.com", "iamcredentials.googleapis.com", "login.microsoftonline.com"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o644); err != nil {
		t.Fatal(err)
	}
	service := httptest.NewUnstartedServer(s)
	service.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}}
	service.StartTLS()
	t.Cleanup(service.Close)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tunnel(w, r, service.Listener.Addr().String()) }))
	t.Cleanup(proxy.Close)
	s.proxy = proxy.URL
	return s
}

// tunnel leads every connection to one address, wherever it wanted to go.
func tunnel(w http.ResponseWriter, r *http.Request, to string) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	service, err := net.Dial("tcp", to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = service.Close()
		return
	}
	go func() { // ends with either side
		_, _ = io.Copy(service, buffered) // what has been read of it already, and the rest
		_ = service.Close()
	}()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err == nil {
		_, _ = io.Copy(client, service) // until either side ends
	}
	_ = client.Close()
	_ = service.Close()
}
