package azure_test

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Shared by all tests; TestMain makes them.
var (
	suite *blackbox.Suite
	azure *azurite // nil where HBMFS_AZURITE is not set
)

// The account that Azurite has, and its key, which everybody knows.
const (
	account = "devstoreaccount1"
	key     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

func TestMain(m *testing.M) {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "AZURE_") {
			_ = os.Unsetenv(name) // there is no reason for an error
		}
	}
	for name, value := range map[string]string{"AZURE_STORAGE_KEY": key, "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential", "NO_PROXY": "*"} {
		_ = os.Setenv(name, value) // there is no reason for an error
	}
	os.Exit(blackbox.Main("azure", &suite, func() int {
		code := 1
		err := startAzurite(os.Getenv("HBMFS_AZURITE"))
		if err == nil {
			code = m.Run()
		}
		if azure != nil {
			err = errors.Join(err, azure.end())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}))
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}

// azurite is a running Azurite.
type azurite struct {
	cmd        *exec.Cmd
	url        string // of the account
	containers atomic.Int64
}

func startAzurite(path string) error {
	if path == "" {
		return nil
	}
	a := &azurite{cmd: exec.Command(path, "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck")}
	a.cmd.Dir, a.cmd.Stderr = suite.Dir, os.Stderr
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := a.cmd.Start(); err != nil {
		return fmt.Errorf("start Azurite: %w", err)
	}
	late := time.AfterFunc(blackbox.Patience, func() { _ = a.cmd.Process.Kill() }) // then its output ends
	defer late.Stop()
	lines := bufio.NewScanner(stdout)
	for a.url == "" && lines.Scan() {
		if _, url, ok := strings.Cut(lines.Text(), "successfully listens on "); ok {
			a.url = strings.TrimSpace(url) + "/" + account
		}
	}
	if a.url == "" {
		return fmt.Errorf("it does not say where Azurite listens: %w", errors.Join(lines.Err(), a.end()))
	}
	go func() { _, _ = io.Copy(io.Discard, stdout) }() // until it ends
	azure = a
	return nil
}

// end kills it: its objects are in memory.
func (a *azurite) end() error {
	err := a.cmd.Process.Kill()
	_ = a.cmd.Wait() // it was killed
	return err
}

func needAzurite(t testing.TB) {
	t.Helper()
	if azure == nil {
		t.Skip("needs HBMFS_AZURITE, Azurite's program for blobs (make test installs it)")
	}
}

// ask makes a request that must succeed, signed with the account's key.
func (a *azurite) ask(t testing.TB, method, path, query string, body []byte, headers ...string) {
	t.Helper()
	q, err := http.NewRequest(method, a.url+path, bytes.NewReader(body))
	must(t, err)
	q.URL.RawQuery = query
	q.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
	q.Header.Set("X-Ms-Version", "2021-12-02")
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	length := ""
	if len(body) > 0 {
		length = fmt.Sprint(len(body))
	}
	text := method + "\n\n\n" + length + "\n\n\n\n\n\n\n\n\n"
	for _, name := range slices.Sorted(maps.Keys(q.Header)) {
		if strings.HasPrefix(name, "X-Ms-") {
			text += strings.ToLower(name) + ":" + q.Header.Get(name) + "\n"
		}
	}
	text += "/" + account + q.URL.EscapedPath()
	for _, name := range slices.Sorted(maps.Keys(q.URL.Query())) {
		text += "\n" + name + ":" + q.URL.Query().Get(name)
	}
	secret, err := base64.StdEncoding.DecodeString(key)
	must(t, err)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	q.Header.Set("Authorization", "SharedKey "+account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	res, err := http.DefaultClient.Do(q)
	must(t, err)
	said, err := io.ReadAll(res.Body)
	must(t, errors.Join(err, res.Body.Close()))
	if res.StatusCode/100 != 2 {
		t.Errorf("%s %s: %s: %s", method, path, res.Status, said)
	}
}

// container makes an empty container.
func (a *azurite) container(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("container-%d", a.containers.Add(1))
	a.ask(t, http.MethodPut, "/"+name, "restype=container", nil)
	return name
}

func pathOf(container, name string) string {
	return "/" + container + "/" + strings.ReplaceAll(url.PathEscape(name), "%2F", "/")
}

// put uploads an object.
func (a *azurite) put(t testing.TB, container, name string, data []byte, headers ...string) {
	t.Helper()
	a.ask(t, http.MethodPut, pathOf(container, name), "", data, append([]string{"X-Ms-Blob-Type", "BlockBlob"}, headers...)...)
}

func (a *azurite) remove(t testing.TB, container, name string) {
	t.Helper()
	a.ask(t, http.MethodDelete, pathOf(container, name), "", nil)
}

func sourceOf(path string) string { return "az://" + account + "/" + path + "?endpoint=" + azure.url }

// proxy stands before the server, and may answer in its place.
type proxy struct {
	*httptest.Server
	before atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
}

func newProxy(t testing.TB) *proxy {
	p := &proxy{}
	server, err := url.Parse(azure.url)
	must(t, err)
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", server.Host, server.Host
	}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := p.before.Load(); f == nil || !(*f)(w, r) {
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() { p.CloseClientConnections(); p.Close() })
	return p
}

func (p *proxy) do(f func(w http.ResponseWriter, r *http.Request) bool) { p.before.Store(&f) }

func (p *proxy) source(path string) string {
	return "az://" + account + "/" + path + "?endpoint=" + p.URL + "/" + account
}

// mount mounts a source. When the test ends it must come off, and the daemon must end.
func mount(t *testing.T, source string, flags ...string) *blackbox.Mounted {
	t.Helper()
	return suite.MountOn(t, source, suite.NewDir(t), append(flags, "--no-keeper")...)
}

// said runs a command of hbmfs, and gives all that it says.
func said(t testing.TB, args ...string) (string, error) {
	t.Helper()
	out, err := suite.Command(t.Context(), args...).CombinedOutput()
	return string(out), err
}

// sasOf signs for reading and listing a container until then:
// https://learn.microsoft.com/en-us/rest/api/storageservices/create-service-sas
func sasOf(t testing.TB, container, end string) string {
	t.Helper()
	const version = "2021-12-02"
	text := strings.Join([]string{"rl", "", end, "/blob/" + account + "/" + container, "", "", "", version, "c", "", "", "", "", "", "", ""}, "\n")
	secret, err := base64.StdEncoding.DecodeString(key)
	must(t, err)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return url.Values{"sv": {version}, "sr": {"c"}, "sp": {"rl"}, "se": {end}, "sig": {base64.StdEncoding.EncodeToString(mac.Sum(nil))}}.Encode()
}
