package stuck_test

import (
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// After an unmount the next filesystem may get the same device number, while a stopped daemon still has the old connection under that number.
// umount --force ends the daemon of the mount that there is, and no other.
func TestForceTellsDaemonsOfOneNumberApart(t *testing.T) {
	blackbox.NeedRoot(t)
	before := map[int]*mounted{}
	for range 20 {
		m := jam(t, false)
		found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(m.Point))
		must(t, err)
		stuck := before[found[0].Minor]
		if stuck == nil {
			must(t, blackbox.Stop(m.PID)) // else it closes its connection
			must(t, unix.Unmount(m.Point, unix.UMOUNT_NOFOLLOW))
			before[found[0].Minor] = m
			continue
		}
		if code, said := timed(t, false, "umount", "--force", m.Point); code != 0 {
			t.Errorf("exit code %d: %q", code, said)
		}
		mounttest.WantMounted(t, m.Point, false)
		if !blackbox.Ended(m.PID) {
			t.Error("the daemon of the mount goes on")
		}
		if blackbox.Ended(stuck.PID) {
			t.Error("the daemon of a mount that has gone was ended")
		}
		return
	}
	t.Skip("no device number was used again")
}
