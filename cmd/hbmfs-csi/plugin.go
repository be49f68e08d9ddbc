package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/csi/plugin"
	"github.com/hbmfs/hbmfs/internal/csi/registration"
	"github.com/hbmfs/hbmfs/internal/csi/rpc"
	"github.com/hbmfs/hbmfs/internal/text/address"
)

// Defaults that both roles share.
const (
	defaultDriver = "csi.hbmfs.io"
	defaultState  = "/var/lib/hbmfs"
	hostSocket    = "host.sock"    // gRPC
	metricsSocket = "metrics.sock" // HTTP
	holdSocket    = "hold.sock"    // copies of the descriptors of keepers
)

const secretsHelp = `Keys of the secret, by the source:

  s3://           AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where there is one
  gs://           credentials.json
  az://           AZURE_STORAGE_CONNECTION_STRING
  hf://           HF_TOKEN
  oci://          .dockerconfigjson`

type pluginCommand struct {
	endpoint, nodeID, stateDir, driver, register, health, metrics string

	maxVolumes int64
	log        logFlags
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

With --register the plugin makes itself known to kubelet: --endpoint is then the path that kubelet sees, too. At --health-address
kubelet's probes find /healthz (plugin and host answer) and /readyz (and kubelet knows the driver). Without the two,
node-driver-registrar and livenessprobe of Kubernetes do that work.

A volume says what it shows in its attributes. Only source is needed, but for KV volumes:

  source          an absolute directory of the node (below hbmfs-csi host --allow-source), or an address:
                  ` + address.Forms("or") + `
  format, dtype   when the dataset is not recognized by itself
  cacheSize, cacheMinFree, cacheSegment           the node's cache, as in 2TiB; the first two of persistent volumes only
  connections, patience                           requests to the source at once; how long it may give nothing, as in 2m
  readAhead, uid, gid, umask, showViews, logLevel flags of hbmfs mount by the same name; so is frozen, for persistent volumes
  authentication  auto, anonymous, secret (access keys in a Kubernetes secret) or pod (the token of the pod's service account)
  roleArn, workloadIdentityProvider, googleServiceAccount, azureClientId, azureTenantId  what the token is exchanged for

A checkpoint volume is one where programs write, in a directory of the node (below hbmfs-csi host --allow-checkpoints):

  checkpoints     true
  drain           s3://BUCKET/RUN where published checkpoints are copied to; its rights are those of a source
  keep, drainRate checkpoints that stay on the node, once newer ones are at the destination; as in 500MB/s

A KV volume keeps blocks of engines' KV caches, in a directory of the node (below hbmfs-csi host --allow-kv), and has no source:

  kv              the directory
  size            bytes of its disk that the blocks may take, as in 200GiB; they are allocated at once
  memory          bytes of memory that they may take before, as in 32GiB (of hbmfs-csi host --kv-memory); none is no memory tier
  keepFor         how long the volume stays once no pod has it, with its memory, as in 10m, which is the default; 0 is not at all

` + secretsHelp,
		Example: `  hbmfs-csi host --allow-source /data &
  hbmfs-csi --endpoint unix:///var/lib/kubelet/plugins/csi.hbmfs.io/csi.sock --register /var/lib/kubelet/plugins_registry \
    --node-id $NODE_NAME`,
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&c.endpoint, "endpoint", os.Getenv("CSI_ENDPOINT"), "socket that kubelet talks to, as in unix:///var/lib/kubelet/plugins/csi.hbmfs.io/csi.sock (default: $CSI_ENDPOINT)")
	f.StringVar(&c.nodeID, "node-id", os.Getenv("NODE_ID"), "name of this node (default: $NODE_ID)")
	f.StringVar(&c.stateDir, "state-dir", defaultState, "directory of the host, whose socket is in it")
	f.StringVar(&c.driver, "driver-name", defaultDriver, "name of the CSI driver")
	f.StringVar(&c.register, "register", "", "kubelet's directory plugins_registry, where the plugin makes itself known (default: nowhere)")
	f.StringVar(&c.health, "health-address", "", "where kubelet's probes find /healthz and /readyz, as in :9808 (default: nowhere)")
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
	parts := []part{answers(server, listener)}
	metrics, err := shows(ctx, c.metrics, "Prometheus", plugin.Metrics(filepath.Join(c.stateDir, metricsSocket), calls))
	if err != nil {
		return err
	}
	r := &registration.Registration{Driver: c.driver, Endpoint: socket, Directory: c.register, Calls: calls, Log: log}
	self, err := rpc.Dial(socket, "the plugin does not answer at its own socket")
	if err != nil {
		return err
	}
	defer func() { _ = self.Close() }() // nothing is lost
	health, err := shows(ctx, c.health, "kubelet's probes", plugin.Health(csi.NewIdentityClient(self), func() bool {
		return c.register == "" || r.Registered()
	}))
	if err != nil {
		return err
	}
	if parts = append(parts, metrics, health); c.register != "" {
		parts = append(parts, r.Run)
	}
	log.Info("the plugin answers", "endpoint", c.endpoint, "node", c.nodeID, "driver", c.driver, "version", version)
	return serve(ctx, parts...)
}
