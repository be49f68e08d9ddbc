// Package plugin answers kubelet: CSI's Identity and Node services. It mounts nothing, and forwards to
// the host (package csi/host), which does all work on the node. So a plugin can be replaced at any time, under readers at
// full speed. While no host is there, it holds the mounts: see [Hold].
package plugin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hbmfs/hbmfs/internal/csi/rpc"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// Plugin is the two services.
type Plugin struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	Name       string // of the driver
	Version    string
	NodeID     string
	MaxVolumes int64 // 0: no limit

	host     csi.NodeClient
	identity csi.IdentityClient
}

// Connect has the plugin forward to a host. Nobody needs to answer there yet.
func (p *Plugin) Connect(to *grpc.ClientConn) {
	p.host, p.identity = csi.NewNodeClient(to), csi.NewIdentityClient(to)
}

// GetPluginInfo names the driver.
func (p *Plugin) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: p.Name, VendorVersion: p.Version}, nil
}

// GetPluginCapabilities says that there is a node service and nothing else: volumes are static or inline.
func (p *Plugin) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe says whether the host answers.
func (p *Plugin) Probe(ctx context.Context, req *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pause.Patience)
	defer cancel()
	_, err := p.identity.Probe(ctx, req)
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(err == nil)}, nil
}

// NodeGetInfo names the node.
func (p *Plugin) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: p.NodeID, MaxVolumesPerNode: p.MaxVolumes}, nil
}

// NodeGetCapabilities lists the calls of the node service.
func (p *Plugin) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_VOLUME_CONDITION, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
	} {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}

// NodeStageVolume and the calls below it are the host's work.
func (p *Plugin) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return p.host.NodeStageVolume(ctx, req)
}

func (p *Plugin) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return p.host.NodeUnstageVolume(ctx, req)
}

func (p *Plugin) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return p.host.NodePublishVolume(ctx, req)
}

func (p *Plugin) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return p.host.NodeUnpublishVolume(ctx, req)
}

func (p *Plugin) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return p.host.NodeGetVolumeStats(ctx, req)
}

// Metrics is the page for Prometheus: the host's page from its socket, and the calls to this plugin. Where the host does
// not answer there are only these, and hbmfs_csi_host_up says so.
func Metrics(socket string, calls *rpc.Calls) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "host" },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { // the page says so
			fmt.Fprint(w, "# HELP hbmfs_csi_host_up 1 where hbmfs-csi host answers.\n# TYPE hbmfs_csi_host_up gauge\nhbmfs_csi_host_up 0\n")
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del("Content-Length") // more follows
			r.ContentLength = -1
			return nil
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.Error(w, "the metrics are at /metrics", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		proxy.ServeHTTP(w, r)
		fmt.Fprint(w, callMetrics(calls))
	})
}

func callMetrics(calls *rpc.Calls) string {
	var samples []string
	calls.Each(func(c rpc.Call, n int64) {
		samples = append(samples, fmt.Sprintf("hbmfs_csi_calls_total{method=%q,code=%q} %d\n", c.Method, c.Code, n))
	})
	slices.Sort(samples)
	return "# HELP hbmfs_csi_calls_total Calls of kubelet, by how they ended.\n# TYPE hbmfs_csi_calls_total counter\n" + strings.Join(samples, "")
}
