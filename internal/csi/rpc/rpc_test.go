package rpc

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// broken fails in the ways that services do.
type broken struct{ csi.UnimplementedNodeServer }

func (broken) NodePublishVolume(context.Context, *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return nil, errors.New("the disk is full")
}

func (broken) NodeUnpublishVolume(context.Context, *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return nil, status.Error(codes.Unavailable, "the origin is down")
}

func TestCalls(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	socket := filepath.Join(t.TempDir(), "s")
	conn, err := Dial(socket, "is it running?")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := csi.NewNodeClient(conn)
	publish := &csi.NodePublishVolumeRequest{
		VolumeId: "v", TargetPath: "/target", Secrets: map[string]string{"AWS_SECRET_ACCESS_KEY": "hunter2"},
		VolumeContext: map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": "hunter2"},
	}
	if _, err := client.NodePublishVolume(ctx, publish); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "is it running?") {
		t.Errorf("nobody listens: %v", err)
	}

	var log bytes.Buffer
	calls := &Calls{}
	server := NewServer(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), calls)
	csi.RegisterNodeServer(server, broken{})
	for range 2 { // what the first left does not keep the second away
		stop := serveOn(t, server, socket)
		defer stop()
	}
	if _, err := client.NodePublishVolume(ctx, publish, grpc.WaitForReady(true)); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("an error without a code: %v", err)
	}
	if _, err := client.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "v"}); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "is it running?") {
		t.Errorf("the service says that something is unavailable: %v", err)
	}
	server.Stop()
	for _, want := range []string{"method=NodePublishVolume", "code=Internal", "volume_id=v", "target=/target", `error="the disk is full"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("the log shows a secret:\n%s", log.String())
	}
	counted := map[Call]int64{}
	calls.Each(func(c Call, n int64) { counted[c] = n })
	if len(counted) != 2 || counted[Call{"NodePublishVolume", "Internal"}] != 1 || counted[Call{"NodeUnpublishVolume", "Unavailable"}] != 1 {
		t.Errorf("counted %v", counted)
	}
}

func serveOn(t *testing.T, server *grpc.Server, socket string) (stop func()) {
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	return func() {
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}
}

func TestListenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(file); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("%v, %v", l, err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("the file is now %q, %v", text, err)
	}
}

func TestDescriptorsAreRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the test is over
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }() // the test is over
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var known error
	if err := raw.Control(func(fd uintptr) { _, known = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS) }); err != nil {
		t.Fatal(err)
	}
	if known != nil {
		t.Skip("needs Linux 6.16")
	}
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil); !errors.Is(err, unix.EPERM) {
		t.Errorf("a descriptor is sent: %v, want EPERM", err)
	}
}

// Close takes the process's own socket away, and no other.
func TestCloseRemovesOwnSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	first, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	there := func() bool { _, err := os.Lstat(socket); return err == nil }
	if err := first.Close(); err != nil || !there() {
		t.Errorf("the first took the second one's socket away, or failed: %v", err)
	}
	if err := second.Close(); err != nil || there() {
		t.Errorf("the second left its socket, or failed: %v", err)
	}
	third, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = third.Close() }() // of a test that ends
	if err := errors.Join(first.Close(), second.Close()); err != nil || !there() {
		t.Errorf("closed twice: %v", err)
	}
}
