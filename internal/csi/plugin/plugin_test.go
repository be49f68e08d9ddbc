package plugin

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/rpc"
)

// TestWithoutHost has a plugin whose host does not run: it says so, and works on what needs none.
func TestWithoutHost(t *testing.T) {
	conn, err := rpc.Dial(filepath.Join(t.TempDir(), "host.sock"), "is the host running?")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	p := &Plugin{Name: "csi.hbmfs.io", NodeID: "n", MaxVolumes: 3}
	p.Connect(conn)
	if r, err := p.Probe(t.Context(), &csi.ProbeRequest{}); err != nil || r.GetReady().GetValue() {
		t.Errorf("ready %v, %v", r.GetReady(), err)
	}
	if r, err := p.NodeGetInfo(t.Context(), nil); err != nil || r.GetNodeId() != "n" || r.GetMaxVolumesPerNode() != 3 {
		t.Errorf("%v, %v", r, err)
	}
	for name, call := range map[string]func() error{
		"stage":   func() error { _, err := p.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{}); return err },
		"unstage": func() error { _, err := p.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{}); return err },
		"publish": func() error { _, err := p.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{}); return err },
		"unpublish": func() error {
			_, err := p.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{})
			return err
		},
		"stats": func() error {
			_, err := p.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "is the host running?") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "metrics.sock")
	calls := &rpc.Calls{}
	page := httptest.NewServer(Metrics(socket, calls))
	defer page.Close()
	if code, text := get(t, page.URL+"/metrics"); code != http.StatusOK || !strings.Contains(text, "hbmfs_csi_host_up 0\n") || !strings.Contains(text, "# TYPE hbmfs_csi_calls_total counter\n") {
		t.Errorf("without a host: %d\n%s", code, text)
	}
	l, err := rpc.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	host := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "7")
		_, _ = io.WriteString(w, "mine 1\n")
	})}
	served := make(chan error, 1)
	go func() { served <- host.Serve(l) }()
	if code, text := get(t, page.URL+"/metrics"); code != http.StatusOK || !strings.HasPrefix(text, "mine 1\n# HELP hbmfs_csi_calls_total") {
		t.Errorf("with a host: %d\n%s", code, text)
	}
	if code, _ := get(t, page.URL+"/debug"); code != http.StatusNotFound {
		t.Errorf("another path: %d", code)
	}
	if err := errors.Join(host.Close(), <-served); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}
