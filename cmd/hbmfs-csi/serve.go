package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// headerTime is how long a client of a page may take for its request.
const headerTime = 10 * time.Second

// callTime is how long calls that are under way have when the process is asked to end. Their work goes on in the host.
const callTime = 5 * time.Second

// part is something that a process does until the context ends, or until it fails.
type part func(context.Context) error

// serve runs parts until ctx ends or one of them fails, which ends all.
func serve(ctx context.Context, parts ...part) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, p := range parts {
		all.Go(func() error { return p(ctx) })
	}
	return all.Wait()
}

// answers is a server of calls.
func answers(server *grpc.Server, at net.Listener) part {
	return func(ctx context.Context) error {
		failed := make(chan error, 1)
		go func() { failed <- server.Serve(at) }() // ends with the server
		var err error
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
		timer := time.AfterFunc(callTime, server.Stop)
		defer timer.Stop()
		server.GracefulStop()
		return err
	}
}

// page is a server of a page.
func page(at net.Listener, handler http.Handler) part {
	return func(ctx context.Context) error {
		server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTime}
		defer context.AfterFunc(ctx, func() { _ = server.Close() })() // a request that is under way is lost
		if err := server.Serve(at); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// shows is a page at a TCP address that is somebody's; with no address it is nothing.
func shows(ctx context.Context, address, whose string, handler http.Handler) (part, error) {
	if address == "" {
		return func(context.Context) error { return nil }, nil
	}
	at, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w", whose, err)
	}
	return page(at, handler), nil
}
