// Package rpc serves and calls gRPC on local sockets, and logs each call. A line has the method, the volume and the
// result, and nothing that may be secret.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Listen listens on a socket of the file system, for root alone. The socket of an earlier process is removed. Close removes the
// socket, unless it is a later process's by then.
func Listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	if info, err := os.Lstat(socket); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("listen on %s: there is something that is no socket: remove it", socket)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	l, err := (&net.ListenConfig{Control: refuseDescriptors}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // Close knows better
	own, err := os.Lstat(socket)
	if err == nil {
		err = os.Chmod(socket, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", socket, err), l.Close())
	}
	return &listener{Listener: l, socket: socket, own: own}, nil
}

// listener is a socket of the file system.
type listener struct {
	net.Listener
	socket string
	own    fs.FileInfo
	close  sync.Once
	err    error
}

// Close ends listening. Until then the socket has its inode, whose number nothing else gets, and so only the first call looks.
func (l *listener) Close() error {
	l.close.Do(func() {
		if found, err := os.Lstat(l.socket); err == nil && os.SameFile(found, l.own) {
			l.err = os.Remove(l.socket)
		}
		l.err = errors.Join(l.err, l.Listener.Close())
	})
	return l.err
}

// refuseDescriptors has the kernel refuse descriptors that peers would send along (Linux 6.16). The receiver has to close
// it, which may take as long as the sender likes.
func refuseDescriptors(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) }) // an older kernel does without
}

// Calls counts calls by method and code, for the metrics. The zero value is ready.
type Calls struct {
	mu     sync.Mutex
	counts map[Call]int64
}

// Call is a method and how it ended.
type Call struct{ Method, Code string }

func (c *Calls) add(call Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[Call]int64{}
	}
	c.counts[call]++
}

// Each calls do for every kind of call there was, in no order.
func (c *Calls) Each(do func(Call, int64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for call, n := range c.counts {
		do(call, n)
	}
}

// NewServer makes a server that counts and logs its calls.
func NewServer(log *slog.Logger, calls *Calls) *grpc.Server {
	return grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		began := time.Now()
		answer, err := handle(ctx, req)
		if err != nil {
			err = coded(err)
		}
		method := path.Base(info.FullMethod)
		calls.add(Call{method, status.Code(err).String()})
		level := slog.LevelDebug
		switch {
		case err != nil && status.Code(err) != codes.Aborted:
			level = slog.LevelError
		case strings.HasSuffix(method, "Volume"): // a call that changes something
			level = slog.LevelInfo
		}
		log.Log(ctx, level, "call", fields(method, req, err, time.Since(began))...)
		return answer, err
	}))
}

// coded gives errors without a gRPC code the one of a failure inside.
func coded(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Internal, err.Error())
}

// fields are the log's fields of a call. Secrets, attributes and kubelet's data of the pod are not among them.
func fields(method string, req any, err error, took time.Duration) []any {
	out := []any{"method", method, "code", status.Code(err).String(), "seconds", took.Seconds()}
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		out = append(out, "volume_id", r.GetVolumeId())
	}
	if r, ok := req.(interface{ GetTargetPath() string }); ok {
		out = append(out, "target", r.GetTargetPath())
	}
	if err != nil {
		out = append(out, "error", status.Convert(err).Message())
	}
	return out
}

// Dial connects to a socket of the file system when it is first needed, and again when it was lost. hint is the error
// where nobody answers.
func Dial(socket, hint string) (*grpc.ClientConn, error) {
	retry := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second}, MinConnectTimeout: time.Second}
	return grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a socket that only root can open
		grpc.WithConnectParams(retry),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if status.Code(err) == codes.Unavailable && cc.GetState() != connectivity.Ready {
				return status.Errorf(codes.Unavailable, "%s (%s)", hint, status.Convert(err).Message())
			}
			return err
		}))
}
