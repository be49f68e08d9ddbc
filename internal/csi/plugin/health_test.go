package plugin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type prober struct {
	csi.IdentityClient
	ready bool
	err   error
}

func (p prober) Probe(context.Context, *csi.ProbeRequest, ...grpc.CallOption) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(p.ready)}, p.err
}

func TestHealth(t *testing.T) {
	for name, c := range map[string]struct {
		probe          prober
		registered     bool
		healthz, ready int
	}{
		"all is well":                     {prober{ready: true}, true, 200, 200},
		"kubelet does not know it":        {prober{ready: true}, false, 200, 503},
		"no host":                         {prober{}, true, 503, 503},
		"the plugin's own socket is dead": {prober{ready: true, err: errors.New("hangs")}, true, 503, 503},
	} {
		page := httptest.NewServer(Health(c.probe, func() bool { return c.registered }))
		for path, want := range map[string]int{"/healthz": c.healthz, "/readyz": c.ready, "/metrics": http.StatusNotFound} {
			if code, text := get(t, page.URL+path); code != want {
				t.Errorf("%s: %s: %d %s, want %d", name, path, code, text, want)
			}
		}
		page.Close()
	}
}
