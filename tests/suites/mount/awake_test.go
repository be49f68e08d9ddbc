package mount_test

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// While files are opened at a high rate a mount with --awake asks the kernel for a latency of 0, and takes that back afterwards.
func TestAwake(t *testing.T) {
	blackbox.NeedRoot(t)
	const device = "/dev/cpu_dma_latency"
	latency := func() int32 {
		p, err := os.ReadFile(device) // 4 bytes: what all processes together ask for
		if err != nil || len(p) != 4 {
			t.Skipf("no latency of this machine's processors can be read: %d bytes, %v", len(p), err)
		}
		return int32(binary.NativeEndian.Uint32(p))
	}
	if latency() == 0 {
		t.Skip("another process keeps the processors awake")
	}
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"small": "content"})
	m := mount(t, source, "--awake")
	asleep := func(why string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); latency() == 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the processors are kept awake for a minute %s", why)
			}
		}
	}
	asleep("by a mount that nobody uses")
	path := m.Path("small")
	for end := time.Now().Add(time.Minute); latency() != 0; {
		if time.Now().After(end) {
			t.Fatal("a minute of opens did not wake the processors")
		}
		for range 500 {
			f, err := os.Open(path)
			must(t, err)
			must(t, f.Close())
		}
	}
	asleep("after the last open")
}
