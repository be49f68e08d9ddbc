package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/hbmfs/hbmfs/internal/csi/plugin"
	"github.com/hbmfs/hbmfs/internal/csi/rpc"
)

// Defaults that both roles share.
const (
	defaultDriver = "csi.hbmfs.io"
	defaultState  = "/var/lib/hbmfs"
	hostSocket    = "host.sock"    // gRPC
	metricsSocket = "metrics.sock" // HTTP
	holdSocket    = "hold.sock"    // copies of what keepers have
)

type pluginCommand struct {
	endpoint, nodeID, stateDir, driver, metrics string
	maxVolumes                                  int64
	log                                         logFlags
}

func newPluginCommand() *cobra.Command {
	c := &pluginCommand{}
	cmd := &cobra.Command{
		Use:   "hbmfs-csi",
		Short: "The CSI driver of hbmfs",
		Long: `hbmfs-csi gives pods volumes that are hbmfs mounts: static persistent volumes, and inline ones.

It is two processes on each node. The plugin (this command) is what kubelet talks to: it forwards to the host, keeps no
state and needs no privilege, so it can be restarted and upgraded at any time. The host (hbmfs-csi host) starts the hbmfs
daemons and makes the mounts: one daemon for all pods of the node that want the same, started again when it dies. While the
host is replaced, the plugin holds the mounts.

A volume says what it shows in its attributes. Only source is needed:

  source          an absolute directory of the node (below hbmfs-csi host --allow-source), s3://BUCKET/PREFIX, http(s)://HOST/PATH
  format, dtype   when the dataset is not recognized by itself
  cacheSize, cacheMinFree, cacheSegment           the node's cache, as in 2TiB; the first two of persistent volumes only
  connections, patience                           requests to the source at once; how long it may give nothing, as in 2m
  readAhead, uid, gid, umask, showViews, logLevel flags of hbmfs mount by the same name
  authentication  auto, anonymous, secret (access keys in a Kubernetes secret) or pod (the token of the pod's service account)
  roleArn         the role that the token is exchanged for

A checkpoint volume is one where programs write, in a directory of the node (below hbmfs-csi host --allow-checkpoints):

  checkpoints     true
  drain           s3://BUCKET/RUN where published checkpoints are copied to; its rights are those of a source
  keep, drainRate checkpoints that stay on the node, once newer ones are at the destination; as in 500MB/s

Keys of the secret: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where there is one.`,
		Example: `  hbmfs-csi host --allow-source /data &
  hbmfs-csi --endpoint unix:///csi/csi.sock --node-id $NODE_NAME`,
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&c.endpoint, "endpoint", os.Getenv("CSI_ENDPOINT"), "socket that kubelet talks to, as in unix:///csi/csi.sock (default: $CSI_ENDPOINT)")
	f.StringVar(&c.nodeID, "node-id", os.Getenv("NODE_ID"), "name of this node (default: $NODE_ID)")
	f.StringVar(&c.stateDir, "state-dir", defaultState, "directory of the host, whose socket is in it")
	f.StringVar(&c.driver, "driver-name", defaultDriver, "name of the CSI driver")
	f.StringVar(&c.metrics, "metrics-address", ":9809", `where Prometheus finds /metrics, "" for nowhere`)
	f.Int64Var(&c.maxVolumes, "max-volumes", 0, "volumes that the scheduler may put on this node (0: any number)")
	c.log.add(cmd)
	return cmd
}

// socketOf returns the path of an endpoint.
func socketOf(endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix:")
	path = strings.TrimPrefix(path, "//")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("--endpoint %q: want unix:///PATH", endpoint)
	}
	return path, nil
}

func (c *pluginCommand) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	log, err := c.log.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	socket, err := socketOf(c.endpoint)
	if err != nil {
		return err
	}
	if c.nodeID == "" || c.maxVolumes < 0 {
		return errors.New("--node-id must name this node, and --max-volumes cannot be negative")
	}
	host, err := rpc.Dial(filepath.Join(c.stateDir, hostSocket), "the host of this node does not answer: is hbmfs-csi host running there?")
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }() // nothing is lost
	p := &plugin.Plugin{Name: c.driver, Version: version, NodeID: c.nodeID, MaxVolumes: c.maxVolumes}
	p.Connect(host)
	go plugin.Hold(ctx, filepath.Join(c.stateDir, holdSocket))
	calls := &rpc.Calls{}
	server := rpc.NewServer(log, calls)
	csi.RegisterIdentityServer(server, p)
	csi.RegisterNodeServer(server, p)
	listener, err := rpc.Listen(socket)
	if err != nil {
		return err
	}
	var at net.Listener
	if c.metrics != "" {
		if at, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.metrics); err != nil {
			return fmt.Errorf("listen for Prometheus: %w", err)
		}
	}
	log.Info("the plugin answers", "endpoint", c.endpoint, "node", c.nodeID, "driver", c.driver, "version", version)
	return serve(ctx, server, listener, plugin.Metrics(filepath.Join(c.stateDir, metricsSocket), calls), at)
}

// headerTime is how long a client of the metrics may take for its request.
const headerTime = 10 * time.Second

// callTime is how long calls that are under way have when the process is asked to end. Their work goes on in the host.
const callTime = 5 * time.Second

// serve answers calls, and shows the page of metrics at an address that is not nil, until ctx ends or one of the two fails.
func serve(ctx context.Context, server *grpc.Server, calls net.Listener, metrics http.Handler, at net.Listener) (err error) {
	failed := make(chan error, 2)
	page := &http.Server{Handler: metrics, ReadHeaderTimeout: headerTime}
	defer func() { _ = page.Close() }() // a scrape that is under way is lost
	if at != nil {
		go func() { failed <- page.Serve(at) }() // ends with the page
	}
	go func() { failed <- server.Serve(calls) }() // ends with the server
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	timer := time.AfterFunc(callTime, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
	return err
}
