// Command s3server is a real S3 server for tests: versitygw's over a directory. It stands in for AWS, and is built once,
// as a module of its own, so that its dependencies never become ours.
//
//	s3server -root DIR -meta DIR -socket FILE
//
// Buckets are the directories of -root. An object that is put through the protocol has its ETag below -meta; a file that
// was placed there has the ETag "placed". It listens on a socket with a name, which needs no free port, says "ready" on
// its standard output, and ends when its standard input does: so it never outlives the test that started it. The keys are
// in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
)

const region = "us-east-1"

func main() {
	root := flag.String("root", "", "directory of the buckets")
	sidecar := flag.String("meta", "", "directory of what is known of the objects")
	socket := flag.String("socket", "", "socket to listen on")
	flag.Parse()
	if err := run(*root, *sidecar, *socket); err != nil {
		fmt.Fprintln(os.Stderr, "s3server:", err)
		os.Exit(1)
	}
}

func run(root, sidecar, socket string) error {
	account := auth.Account{Access: os.Getenv("AWS_ACCESS_KEY_ID"), Secret: os.Getenv("AWS_SECRET_ACCESS_KEY"), Role: auth.RoleAdmin}
	if root == "" || sidecar == "" || socket == "" || account.Access == "" || account.Secret == "" {
		return fmt.Errorf("-root, -meta, -socket, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are needed")
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	out := os.Stdout
	os.Stdout = null // the library logs its work there
	iam, err := auth.New(&auth.Opts{RootAccount: account, CacheDisable: true})
	if err != nil {
		return fmt.Errorf("set up the account: %w", err)
	}
	store, err := meta.NewSideCar(sidecar)
	if err != nil {
		return err
	}
	backend, err := posix.New(root, store, posix.PosixOpts{SideCarDir: sidecar, DefaultEtag: `"placed"`})
	if err != nil {
		return err
	}
	defer backend.Shutdown()
	server, err := s3api.New(backend, middlewares.RootUserConfig{Access: account.Access, Secret: account.Secret}, region, iam, nil, nil, nil, nil,
		s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithConcurrencyLimiter(1024, 1024), s3api.WithMpMaxParts(10_000),
		s3api.WithOnListen(func() { _, _ = fmt.Fprintln(out, "ready") })) // its parent sees the end of the pipe otherwise
	if err != nil {
		return fmt.Errorf("make the server: %w", err)
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeMultiPort([]string{socket}) }()
	parent := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that is waited for
		close(parent)
	}()
	select {
	case err := <-served:
		return err
	case <-parent:
		if err := server.ShutDown(); !errors.Is(err, context.DeadlineExceeded) { // a client may hold a connection: it has no use for this server either
			return err
		}
		return nil
	}
}
