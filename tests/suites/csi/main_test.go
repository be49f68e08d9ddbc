// Package csi_test tests the built hbmfs-csi as Kubernetes uses it: a simulated kubelet makes its calls in their order,
// retries as it does, and looks after its directories; the host runs in a mount namespace of its own, as a container with
// Bidirectional propagation, and the plugin without any privilege; and pods read: unprivileged processes in mount, pid,
// network and user namespaces of their own, which see nothing but the volume.
//
//	n := newNode(t)                                  // a machine with a running host and plugin
//	v := n.directoryVolume("corpus", files)          // what a PersistentVolume says
//	p := n.startPod(v, podOptions{})                 // stage, publish, start: what kubelet does
//	p.must("read", file)                             // in the pod
//	n.stopPod(p); n.unstage(v); n.mustBeClean()
//
// Under the race detector the programs are built with it; otherwise HBMFS_CSI and HBMFS_BINARY name them. All of it needs
// root and FUSE, and says so where it skips. HBMFS_CSI_ROUNDS and HBMFS_SEED make more of the random test, and the
// same again.
package csi_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// patience bounds every wait. It is long, since nothing that works waits for its end.
const patience = time.Minute

// atOnce is how many of the tests run at once that wait most of the time. One a CPU left the CPUs idle.
const atOnce = 4

// Shared by all tests; TestMain makes them.
var (
	suite      *blackbox.Suite
	csiProgram string // the built hbmfs-csi
	podProgram string // this program, where every user can run it
)

func TestMain(m *testing.M) {
	if role := os.Getenv(podRole); role != "" {
		os.Exit(runPod(role))
	}
	os.Exit(blackbox.Main("csi", &suite, func() int {
		if err := providePrograms(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		flag.Parse()
		if err := flag.Set("test.parallel", strconv.Itoa(max(atOnce, runtime.GOMAXPROCS(0)))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}))
}

// providePrograms puts hbmfs-csi and the pods' program beside hbmfs.
func providePrograms() (err error) {
	if csiProgram, err = suite.Program("hbmfs-csi", "HBMFS_CSI"); err != nil {
		return err
	}
	podProgram = filepath.Join(suite.Dir, "pod")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return os.WriteFile(podProgram, self, 0o755)
}

func needNode(t testing.TB) {
	t.Helper()
	blackbox.NeedRoot(t)
	for _, tool := range []string{"unshare", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s of util-linux", tool)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(ok func() bool) bool { return blackbox.Within(patience, ok) }
