package registration

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kubelet "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/hbmfs/hbmfs/internal/csi/rpc"
)

const (
	patience = time.Minute
	endpoint = "/var/lib/kubelet/plugins/csi.example.com/csi.sock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run starts a registration, which stop ends.
func run(t *testing.T, dir string) (r *Registration, stop func()) {
	t.Helper()
	r = &Registration{Driver: "csi.example.com", Endpoint: endpoint, Directory: dir, Calls: &rpc.Calls{}, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }() // ends with the context
	return r, func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// ask does what kubelet does with a socket that it finds, and returns what was said there.
func ask(t *testing.T, dir string, status *kubelet.RegistrationStatus) *kubelet.PluginInfo {
	t.Helper()
	// kubelet's own way of dialling, by path.
	conn, err := grpc.NewClient("passthrough:///"+find(t, dir), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", at)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := kubelet.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &kubelet.InfoRequest{}, grpc.WaitForReady(true))
	if err == nil {
		_, err = client.NotifyRegistrationStatus(ctx, status)
	}
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func find(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "csi.example.com-reg.sock")
	until(t, "a socket", func() bool { _, err := os.Lstat(path); return err == nil })
	return path
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("there is not %s", what)
		}
	}
}

func gone(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "csi.example.com-reg.sock"))
	return os.IsNotExist(err)
}

func TestKubeletTakesTheDriver(t *testing.T) {
	dir := t.TempDir()
	r, stop := run(t, dir)
	find(t, dir)
	if r.Registered() {
		t.Error("registered before kubelet asked")
	}
	info := ask(t, dir, &kubelet.RegistrationStatus{PluginRegistered: true})
	if info.GetType() != "CSIPlugin" || info.GetName() != "csi.example.com" || info.GetEndpoint() != endpoint ||
		len(info.GetSupportedVersions()) != 1 || info.GetSupportedVersions()[0] != "1.0.0" {
		t.Errorf("kubelet hears %v", info)
	}
	if !r.Registered() {
		t.Error("not registered after kubelet took the driver")
	}
	// kubelet starts again, and asks the same socket.
	ask(t, dir, &kubelet.RegistrationStatus{PluginRegistered: true})
	stop()
	if r.Registered() || !gone(dir) {
		t.Error("the driver is registered after its end")
	}
}

// kubelet asks a socket that it has refused never again, so there has to be another.
func TestKubeletRefusesAndIsAskedAgain(t *testing.T) {
	dir := t.TempDir()
	r, stop := run(t, dir)
	defer stop()
	first, err := os.Lstat(find(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	ask(t, dir, &kubelet.RegistrationStatus{Error: "the API server is away"})
	until(t, "another socket", func() bool {
		now, err := os.Lstat(filepath.Join(dir, "csi.example.com-reg.sock"))
		return err == nil && (!os.SameFile(first, now) || !now.ModTime().Equal(first.ModTime())) // a number may be given again
	})
	if r.Registered() {
		t.Error("registered though kubelet refused")
	}
	ask(t, dir, &kubelet.RegistrationStatus{PluginRegistered: true})
	if !r.Registered() {
		t.Error("not registered at the second time")
	}
}

// What a plugin left that was killed is replaced; what a later plugin made stays.
func TestSocketsOfOthers(t *testing.T) {
	dir := t.TempDir()
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "csi.example.com-reg.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	first, stopFirst := run(t, dir)
	until(t, "an answer", func() bool {
		c, err := net.Dial("unix", filepath.Join(dir, "csi.example.com-reg.sock"))
		return err == nil && c.Close() == nil
	})
	ask(t, dir, &kubelet.RegistrationStatus{PluginRegistered: true})
	second, stopSecond := run(t, dir)
	until(t, "a later plugin", func() bool {
		ask(t, dir, &kubelet.RegistrationStatus{PluginRegistered: true})
		return second.Registered()
	})
	stopFirst()
	if first.Registered() || gone(dir) {
		t.Error("the end of the first plugin took the second one's socket away")
	}
	ask(t, dir, &kubelet.RegistrationStatus{PluginRegistered: true})
	stopSecond()
	if !gone(dir) {
		t.Error("a socket is left")
	}
}

func TestNoDirectory(t *testing.T) {
	r := &Registration{Driver: "csi.example.com", Endpoint: endpoint, Directory: filepath.Join(t.TempDir(), "none"), Calls: &rpc.Calls{}, Log: slog.New(slog.DiscardHandler)}
	if err := r.Run(t.Context()); err == nil {
		t.Error("a directory that is not there is no error")
	}
}
