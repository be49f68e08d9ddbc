package lies_test

import (
	"errors"
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
)

// TestLiesAboutBytesOfARegistry is TestLiesAboutBytes for the storage of a registry, which is as that of a Hub.
func TestLiesAboutBytesOfARegistry(t *testing.T) {
	blackbox.NeedFUSE(t)
	for kind, patience := range map[string]time.Duration{"tried": hasty, "once": patient} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			told := hubLies()
			maps.DeleteFunc(told, func(_ string, l lie) bool { return (l.once || !errors.Is(l.want, syscall.EIO)) != (kind == "once") })
			tellAll(t, liar.OCI, told, patience)
		})
	}
}
