package credentials_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newAzure is an account of Azure Blob Storage. Its connection string is in a file.
func newAzure(t *testing.T, s *server) (p *place, use func(text string)) {
	name := filepath.Join(suite.NewDir(t), "connection")
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING_FILE", name)
	p = &place{source: "az://account/container?endpoint=" + s.URL + "/account", secrets: []string{"az-secret"}}
	p.refuse = func(w http.ResponseWriter, status int, text string) {
		code := "Teapot"
		if status == http.StatusUnauthorized {
			code, status = "AuthenticationFailed", http.StatusForbidden
		}
		w.Header().Set("Content-Type", "application/xml")
		w.Header().Set("X-Ms-Error-Code", code)
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message><![CDATA[%s]]></Message><AuthenticationErrorDetail><![CDATA[%[2]s]]></AuthenticationErrorDetail></Error>", code, text)
	}
	p.serve = func(w http.ResponseWriter, r *http.Request) {
		if name := strings.TrimPrefix(r.URL.Path, "/account/container/"); name != r.URL.Path {
			s.file(w, r, name, "ETag", `"0x1"`)
			return
		}
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprint(w, "<EnumerationResults><Blobs>")
		for _, name := range slices.Sorted(maps.Keys(s.files)) {
			fmt.Fprintf(w, `<Blob><Name>%s</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>0x1</Etag><Content-Length>%d</Content-Length></Properties></Blob>`, name, size)
		}
		fmt.Fprint(w, "</Blobs><NextMarker/></EnumerationResults>")
	}
	return p, func(text string) { write(t, name, text) }
}

// newAzureSAS has shared access signatures, which are in the addresses of requests.
func newAzureSAS(t *testing.T, s *server) *place {
	p, use := newAzure(t, s)
	p.use = func(g int64) { use(fmt.Sprintf("SharedAccessSignature=sv=2021-12-02&sp=rl&sig=az-secret%%2B%d", g)) }
	p.valid = func(r *http.Request, g int64) bool { return r.URL.Query().Get("sig") == fmt.Sprintf("az-secret+%d", g) }
	return p
}

// newAzureKey has keys of the account, which sign requests.
func newAzureKey(t *testing.T, s *server) *place {
	p, use := newAzure(t, s)
	key := func(g int64) []byte { return fmt.Appendf(nil, "az-secret-%d", g) }
	for g := range int64(4) {
		p.secrets = append(p.secrets, base64.StdEncoding.EncodeToString(key(g)))
	}
	p.use = func(g int64) { use("AccountName=account;AccountKey=" + base64.StdEncoding.EncodeToString(key(g))) }
	p.valid = func(r *http.Request, g int64) bool {
		text := fmt.Sprintf("%s\n\n\n\n\n\n\n\n%s\n\n\n%s\nx-ms-date:%s\nx-ms-version:%s\n/account%s", r.Method, r.Header.Get("If-Match"), r.Header.Get("Range"),
			r.Header.Get("X-Ms-Date"), r.Header.Get("X-Ms-Version"), r.URL.EscapedPath())
		for _, name := range slices.Sorted(maps.Keys(r.URL.Query())) {
			text += "\n" + name + ":" + r.URL.Query().Get(name)
		}
		mac := hmac.New(sha256.New, key(g))
		mac.Write([]byte(text))
		return r.Header.Get("Authorization") == "SharedKey account:"+base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return p
}
