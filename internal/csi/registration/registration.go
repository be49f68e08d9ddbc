// Package registration makes the plugin known to kubelet, as the program node-driver-registrar does for drivers that cannot: by a
// socket in kubelet's directory plugins_registry. kubelet watches that directory, asks at the socket for the driver's name and the
// path of its CSI socket, asks there for the node's name, and says how it went. When kubelet starts, it asks again.
//
// A socket that is taken away ends the registration: kubelet then knows no driver of that name, until there is one again.
package registration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	kubelet "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/hbmfs/hbmfs/internal/csi/rpc"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// version is CSI's, in the form that kubelet wants: of all drivers of CSI 1.
const version = "1.0.0"

// Pauses before a registration that kubelet refused is tried again. The API server may be away for long.
const leastPause, mostPause = time.Second, time.Minute

// stopTime is how long a call of kubelet's that is under way has when the registration ends.
const stopTime = time.Second

// Registration is that of one driver.
type Registration struct {
	Driver    string     // its name
	Endpoint  string     // path of its CSI socket, as kubelet sees it
	Directory string     // kubelet's plugins_registry, as this process sees it
	Calls     *rpc.Calls // counts kubelet's
	Log       *slog.Logger

	registered atomic.Bool
}

// Registered says whether kubelet took the driver.
func (r *Registration) Registered() bool { return r.registered.Load() }

// Run has the driver registered until ctx ends, and then not any more. The CSI socket has to answer before. The socket that an
// earlier plugin or a registrar left is replaced.
func (r *Registration) Run(ctx context.Context) error {
	if _, err := os.Stat(r.Directory); err != nil {
		return fmt.Errorf("find kubelet's directory of plugins (--register names it): %w", err)
	}
	for wait := leastPause; ; wait = min(2*wait, mostPause) {
		// kubelet does not ask again where it refused: it asks new sockets.
		if again, err := r.offer(ctx); err != nil || !again {
			return err
		}
		if pause.For(ctx, wait) != nil {
			return nil
		}
	}
}

// offer makes the socket and answers there until ctx ends, or until kubelet refuses the driver: then it is to be tried again.
func (r *Registration) offer(ctx context.Context) (again bool, err error) {
	socket := filepath.Join(r.Directory, r.Driver+"-reg.sock")
	l, err := rpc.Listen(socket)
	if err != nil {
		return false, err
	}
	answers := &service{Registration: r, refused: make(chan struct{}, 1)}
	server := rpc.NewServer(r.Log, r.Calls)
	kubelet.RegisterRegistrationServer(server, answers)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // ends with the server
	select {
	case <-ctx.Done():
	case <-answers.refused:
		again = true
	case err = <-served:
	}
	r.registered.Store(false)
	stop(server) // and the socket goes
	return again, err
}

func stop(server *grpc.Server) {
	timer := time.AfterFunc(stopTime, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

// service answers kubelet at one socket.
type service struct {
	kubelet.UnimplementedRegistrationServer
	*Registration

	refused chan struct{}
}

// GetInfo names the plugin to kubelet.
func (s *service) GetInfo(context.Context, *kubelet.InfoRequest) (*kubelet.PluginInfo, error) {
	return &kubelet.PluginInfo{Type: kubelet.CSIPlugin, Name: s.Driver, Endpoint: s.Endpoint, SupportedVersions: []string{version}}, nil
}

// NotifyRegistrationStatus hears whether kubelet took the driver.
func (s *service) NotifyRegistrationStatus(_ context.Context, status *kubelet.RegistrationStatus) (*kubelet.RegistrationStatusResponse, error) {
	s.registered.Store(status.GetPluginRegistered())
	if status.GetPluginRegistered() {
		s.Log.Info("kubelet knows the driver", "driver", s.Driver, "endpoint", s.Endpoint)
		return &kubelet.RegistrationStatusResponse{}, nil
	}
	s.Log.Error("kubelet refused the driver; it is asked again", "driver", s.Driver, "endpoint", s.Endpoint, "error", status.GetError())
	select {
	case s.refused <- struct{}{}:
	default: // it was said before
	}
	return &kubelet.RegistrationStatusResponse{}, nil
}
