package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/hbmfs/hbmfs/internal/csi/plugin"
	"github.com/hbmfs/hbmfs/internal/csi/registration"
	"github.com/hbmfs/hbmfs/internal/csi/rpc"
)

// sidecar stands in for node-driver-registrar and livenessprobe, whose images come from a registry: it takes their flags in the chart,
// and does their work beside a plugin that is told not to.
func sidecar(args []string) error {
	flags := flag.NewFlagSet("sidecar", flag.ContinueOnError)
	address := flags.String("csi-address", "", "socket of the plugin")
	endpoint := flags.String("kubelet-registration-path", "", "the same, as kubelet sees it: it is registered")
	port := flags.Int("health-port", 0, "where probes are answered")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	conn, err := rpc.Dial(*address, "the plugin does not answer")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	identity := csi.NewIdentityClient(conn)
	if *endpoint == "" {
		page := &http.Server{
			Addr: fmt.Sprintf(":%d", *port), ReadHeaderTimeout: time.Minute,
			Handler: plugin.Health(identity, func() bool { return true }),
		}
		defer context.AfterFunc(ctx, func() { _ = page.Close() })() // a probe that is under way is lost
		return page.ListenAndServe()
	}
	info, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return err // and kubelet starts it again
	}
	r := &registration.Registration{Driver: info.GetName(), Endpoint: *endpoint, Directory: "/registration", Calls: &rpc.Calls{}, Log: slog.Default()}
	return r.Run(ctx)
}
