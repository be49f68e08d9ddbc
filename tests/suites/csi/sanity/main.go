// Command csi-sanity runs the conformance tests of the CSI project against a driver. It is their own command but for the
// way it connects: theirs waits for the connection's state to change, and waits in vain where it has changed already. It
// is a module of its own, so that its dependencies never become ours.
//
//	csi-sanity -endpoint SOCKET -controller SOCKET -mountdir DIR -stagingdir DIR [-ginkgo.focus ...]
//
// Both directories are made and removed; their parents must exist.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// outcome is ginkgo's summary.
type outcome struct{ failed bool }

func (o *outcome) Fail() { o.failed = true }

func main() {
	config := sanity.NewTestConfig()
	node := flag.String("endpoint", "", "socket of the driver")
	controller := flag.String("controller", "", "socket of the controller service")
	flag.StringVar(&config.TargetPath, "mountdir", "", "directory whose entries are targets")
	flag.StringVar(&config.StagingPath, "stagingdir", "", "staging path")
	flag.Parse()
	passed, err := run(&config, *node, *controller)
	if err != nil {
		fmt.Fprintln(os.Stderr, "csi-sanity:", err)
	}
	if !passed || err != nil {
		os.Exit(1)
	}
}

// run runs the tests that the flags of ginkgo choose.
func run(config *sanity.TestConfig, node, controller string) (passed bool, err error) {
	tests := sanity.GinkgoTest(config)
	defer tests.Finalize()
	// With connections, and no addresses, it makes none itself.
	if tests.Conn, err = connect(node); err != nil {
		return false, err
	}
	if tests.ControllerConn, err = connect(controller); err != nil {
		return false, err
	}
	gomega.RegisterFailHandler(ginkgo.Fail)
	o := &outcome{}
	return ginkgo.RunSpecs(o, "CSI driver") && !o.failed, nil
}

func connect(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}
