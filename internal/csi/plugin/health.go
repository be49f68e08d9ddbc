package plugin

import (
	"net/http"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Health answers kubelet's probes of the plugin's container: /healthz says whether plugin and host answer, and /readyz whether kubelet
// knows the driver as well. The plugin is asked at its own socket, as kubelet asks it.
func Health(self csi.IdentityClient, registered func() bool) http.Handler {
	answer := func(ready func() bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			probe, err := self.Probe(r.Context(), &csi.ProbeRequest{})
			switch {
			case err != nil:
				http.Error(w, "the plugin does not answer: "+err.Error(), http.StatusServiceUnavailable)
			case !probe.GetReady().GetValue():
				http.Error(w, "the host of this node does not answer", http.StatusServiceUnavailable)
			case !ready():
				http.Error(w, "kubelet does not know the driver yet", http.StatusServiceUnavailable)
			default:
				_, _ = w.Write([]byte("ok\n")) // a client that has gone away hears nothing
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer(func() bool { return true }))
	mux.HandleFunc("GET /readyz", answer(registered))
	return mux
}
