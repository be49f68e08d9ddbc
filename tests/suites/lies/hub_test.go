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

// hubLies are the lies of a Hub's storage. A version is the Hub's word, which the storage cannot change. An address that the storage refuses
// is signed again, until patience is over.
func hubLies() map[string]lie {
	told := lies()
	for name, want := range map[string]error{
		"gone": syscall.EIO, "denied": syscall.EIO, "replaced": syscall.EIO, "not-modified": syscall.EIO, "other-version": nil, "no-version": nil, "weak-version": nil,
	} {
		l := told[name]
		l.want, l.once = want, name == "replaced"
		told[name] = l
	}
	return told
}

// TestLiesAboutBytesOfTheHub is TestLiesAboutBytes for the storage of a Hub.
func TestLiesAboutBytesOfTheHub(t *testing.T) {
	blackbox.NeedFUSE(t)
	for kind, patience := range map[string]time.Duration{"tried": hasty, "once": patient} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			told := hubLies()
			maps.DeleteFunc(told, func(_ string, l lie) bool { return (l.once || !errors.Is(l.want, syscall.EIO)) != (kind == "once") })
			tellAll(t, liar.Hub, told, patience)
		})
	}
}
