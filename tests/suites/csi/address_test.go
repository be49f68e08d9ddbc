package csi_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serveAt is a web server at an address of this machine.
func serveAt(t testing.TB, address string, serve http.HandlerFunc) *httptest.Server {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	must(t, err)
	s := httptest.NewUnstartedServer(serve)
	must(t, s.Listener.Close())
	s.Listener = listener
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// TestAddressesOfTheNode: a volume does not show services that only the node itself may ask, by an address, a name, a redirect or an
// endpoint, unless the operator allows the address. The metadata service of this test is at 127.0.0.2; the suite's nodes allow
// 127.0.0.1 alone.
func TestAddressesOfTheNode(t *testing.T) {
	n := newNode(t)
	var asked atomic.Int64
	metadata := serveAt(t, "127.0.0.2:0", func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("ETag", `"role"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("secret"))
	})
	_, port, err := net.SplitHostPort(metadata.Listener.Addr().String())
	must(t, err)
	allowed := serveAt(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, metadata.URL+"/latest/meta-data/role", http.StatusFound)
	})
	for what, source := range map[string]string{
		"an address":          metadata.URL + "/latest/meta-data/role",
		"a mapped address":    "http://[::ffff:127.0.0.2]:" + port + "/latest/meta-data/role",
		"a redirect":          allowed.URL + "/shard.bin",
		"an endpoint":         fmt.Sprintf("s3://%s/corpus?endpoint=%s&region=us-east-1", bucket, metadata.URL),
		"a directory of them": metadata.URL + "/latest/",
	} {
		v := &volume{name: "inline", inline: true, attributes: map[string]string{"source": source, "patience": "20s"}}
		mustRefuse(t, what, n.publishOnce(n.publishRequest(v, "pod-0001")), "PermissionDenied", "--allow-address")
		n.unpublish(v, "pod-0001")
	}
	if asked.Load() > 0 {
		t.Errorf("the address that is not allowed was asked %d times", asked.Load())
	}
	n.mustBeClean()
}
