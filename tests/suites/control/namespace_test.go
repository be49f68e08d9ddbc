package control_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestFromAnotherMountNamespace reads by extents as a container does: from another mount namespace, through a read-only
// bind mount, with the source out of sight. Nobody there can write to what he was given, root included.
func TestFromAnotherMountNamespace(t *testing.T) {
	blackbox.NeedRoot(t)
	for _, tool := range []string{"unshare", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s of util-linux", tool)
		}
	}
	source := suite.NewDir(t)
	data := bytes.Repeat([]byte("tokens "), 10000)
	must(t, os.WriteFile(filepath.Join(source, "shard.bin"), data, 0o666))
	must(t, os.Chmod(filepath.Join(source, "shard.bin"), 0o666)) // the source's permissions would let anybody write
	m := mount(t, source)
	bind, program := suite.NewDir(t), filepath.Join(suite.NewDir(t), "child")
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(program, self, 0o755))
	script := fmt.Sprintf(`set -e
mount --make-rprivate /
mount --bind %[1]s %[2]s
mount -o remount,bind,ro %[2]s
umount -l %[1]s
mount -t tmpfs none %[3]s
cd /
exec $AS %[4]s %[2]s/shard.bin %[3]s`, m.Path(), bind, source, program)
	for as, want := range map[string]string{
		"": "EBADF EINVAL EROFS EROFS", "setpriv --reuid 65534 --regid 65534 --clear-groups": "EBADF EINVAL EROFS EROFS",
	} {
		cmd := exec.CommandContext(limited(t), "unshare", "-m", "sh", "-c", script)
		cmd.Env = append(os.Environ(), childVerb+"=elsewhere", "AS="+as)
		out, err := cmd.CombinedOutput()
		if want := fmt.Sprintf("%x %s", sha256.Sum256(data), want); err != nil || string(bytes.TrimSpace(out)) != want {
			t.Errorf("as %q: %s, %v, want %s", as, out, err, want)
		}
	}
	if now, err := os.ReadFile(filepath.Join(source, "shard.bin")); err != nil || !bytes.Equal(now, data) {
		t.Errorf("the source now has %d bytes, %v", len(now), err)
	}
}
