// Command gcsserver is fake-gcs-server for tests: a Google Cloud Storage that keeps its objects in memory. It is built once, as
// a module of its own, so that its dependencies never become ours.
//
//	gcsserver -socket FILE
//
// It listens on a socket with a name, which needs no free port, says "ready" on its standard output, and ends when its
// standard input does.
package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

func main() {
	socket := flag.String("socket", "", "socket to listen on")
	flag.Parse()
	if err := run(*socket); err != nil {
		fmt.Fprintln(os.Stderr, "gcsserver:", err)
		os.Exit(1)
	}
}

func run(socket string) error {
	fake, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true, Writer: io.Discard})
	if err != nil {
		return err
	}
	defer fake.Stop()
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- http.Serve(l, fake.HTTPHandler()) }()
	parent := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that is waited for
		close(parent)
	}()
	fmt.Println("ready")
	select {
	case err := <-served:
		return err
	case <-parent:
		return nil
	}
}
