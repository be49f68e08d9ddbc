package csi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/hbmfs/hbmfs/internal/csi/plugin"
	"github.com/hbmfs/hbmfs/internal/csi/rpc"
)

// sanitySkips are the specs of csi-sanity that do not apply, by the beginnings of their names, and why not.
var sanitySkips = map[string]string{
	"Controller Service":            "there is no controller service: volumes are static or inline, and nothing is made for them",
	"ExpandVolume":                  "there is no controller service",
	"ModifyVolume":                  "there is no controller service",
	"GroupController Service":       "there is no controller service",
	"ListSnapshots":                 "what never changes needs no snapshots",
	"DeleteSnapshot":                "what never changes needs no snapshots",
	"CreateSnapshot":                "what never changes needs no snapshots",
	"Node Service NodeExpandVolume": "a dataset has the size that it has",
}

// withController are the specs of the node service that csi-sanity keeps for drivers that make volumes, too.
const withController = "Node Service should "

// TestSanity runs csi-sanity, the conformance tests of the CSI project, against the built driver. It has volumes made by a
// controller, which the driver does not have: one of the test says what a PersistentVolume would.
func TestSanity(t *testing.T) {
	program := os.Getenv("HBMFS_CSI_SANITY")
	if program == "" {
		t.Skip("needs csi-sanity: HBMFS_CSI_SANITY names it (make test builds it)")
	}
	n := newNode(t)
	source := filepath.Join(n.data, "sanity")
	must(t, os.Mkdir(source, 0o755))
	must(t, os.WriteFile(filepath.Join(source, "tokens.bin"), []byte("some tokens"), 0o644))
	front := n.serveFront(filepath.Join(n.dir, "front.sock"), source)

	passed := n.sanity(program, n.socket(), front, "Node Service|Identity Service", func(name string) string {
		if strings.HasPrefix(name, withController) {
			return "the second run has these"
		}
		return ""
	})
	passed += n.sanity(program, front, front, withController, func(string) string { return "the first run has it" })
	if passed < 22 { // of identity and node; most of csi-sanity is about controllers
		t.Errorf("%d specs passed: are those of the node service among them?", passed)
	}
	n.mustBeClean()
}

// sanity runs the specs in focus and returns how many passed. A skipped test must have a reason: one of sanitySkips, or
// one that other gives.
func (n *node) sanity(program, endpoint, controller, focus string, other func(string) string) (passed int) {
	t := n.t
	t.Helper()
	report := filepath.Join(t.(*testing.T).TempDir(), "report.json")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	sanity := exec.CommandContext(ctx, program, "-endpoint", endpoint, "-controller", controller, "-mountdir", filepath.Join(n.kubelet, "pods", "sanity"),
		"-stagingdir", filepath.Join(n.kubelet, "plugins", "staging"), "--ginkgo.json-report", report, "--ginkgo.no-color", "--ginkgo.focus", focus)
	if out, err := sanity.CombinedOutput(); err != nil {
		t.Errorf("csi-sanity: %v\n%s", err, out)
	}
	text, err := os.ReadFile(report)
	must(t, err)
	var suites []struct{ SpecReports []spec }
	must(t, json.NewDecoder(bytes.NewReader(text)).Decode(&suites))
	skipped := map[string]int{}
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			switch {
			case s.LeafNodeType != "It": // what is set up and taken down around them
			case s.State == "passed":
				passed++
			case s.State == "skipped", s.State == "pending":
				skipped[s.reason(t, other)]++
			default:
				t.Errorf("%s %s: %s", s.name(), s.State, s.Failure.Message)
			}
		}
	}
	t.Logf("%s: %d passed", focus, passed)
	for reason, count := range skipped {
		t.Logf("%d skipped: %s", count, reason)
	}
	return passed
}

// spec is one test in the report of csi-sanity.
type spec struct {
	LeafNodeType            string
	ContainerHierarchyTexts []string
	LeafNodeText            string
	State                   string
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
}

func (s spec) reason(t testing.TB, other func(string) string) string {
	for name, why := range sanitySkips {
		if strings.HasPrefix(s.name(), name) {
			return name + ": " + why
		}
	}
	if why := other(s.name()); why != "" {
		return why
	}
	t.Errorf("%s is skipped for no reason that is known here: %s", s.name(), s.Failure.Message)
	return s.name()
}

// front is the driver with a controller service beside it: it passes the node's calls on to the built driver.
type front struct {
	*plugin.Plugin
	csi.UnimplementedControllerServer
	source string
}

func (n *node) serveFront(socket, source string) string {
	t := n.t
	listener, err := net.Listen("unix", socket)
	must(t, err)
	driver, err := rpc.Dial(n.socket(), "the plugin does not answer")
	must(t, err)
	f := front{Plugin: &plugin.Plugin{Name: driverName, Version: "test", NodeID: "node-1"}, source: source}
	f.Connect(driver)
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, f)
	csi.RegisterNodeServer(server, f)
	csi.RegisterControllerServer(server, f)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		must(t, <-done)
		must(t, driver.Close())
	})
	return socket
}

func (front) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}},
	}}}, nil
}

func (front) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}},
	}}}, nil
}

// CreateVolume makes a volume as an administrator writes a PersistentVolume: a name, and attributes.
func (f front) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: req.GetName(), VolumeContext: map[string]string{"source": f.source}}}, nil
}

func (front) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}
