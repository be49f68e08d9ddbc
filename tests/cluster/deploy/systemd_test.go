package deploy_test

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// interpreter returns the dynamic loader that a program needs, "" where it is static.
func interpreter(t *testing.T, program string) string {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			name := make([]byte, p.Filesz)
			if _, err := p.ReadAt(name, 0); err != nil {
				t.Fatal(err)
			}
			return strings.Trim(string(name), "\x00")
		}
	}
	return ""
}

// setting returns the value of a line of hbmfs@.service.
func setting(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(deploy("systemd", "hbmfs@.service"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("hbmfs@.service has no %s", name)
	}
	return string(m[1])
}

// systemd understands the units. (The service is verified where its program is installed: see install.sh.)
func TestUnitsVerify(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skipf("needs systemd-analyze: %v", err)
	}
	output(t, true, "systemd-analyze", "verify", "--man=no", deploy("systemd", "mnt-pile.mount"))
}

// The service's process mounts with the capabilities that it has left, says that it is ready, and ends with SIGTERM.
func TestServiceMounts(t *testing.T) {
	if err := blackbox.CanMount(); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs FUSE and root: %v", err)
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skipf("needs setpriv: %v", err)
	}
	hbmfs := blackbox.Given(t)
	source, point, socket := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "notify")
	if err := os.WriteFile(filepath.Join(source, "data.bin"), []byte("as it is"), 0o644); err != nil {
		t.Fatal(err)
	}
	if setting(t, "Type") != "notify" || setting(t, "NoNewPrivileges") != "yes" {
		t.Error("the service is not what this test starts")
	}
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = systemd.Close() }() // nothing is lost

	var said bytes.Buffer
	cmd := asService(t, hbmfs.Path(), source, point)
	cmd.Env, cmd.Stderr = append(os.Environ(), "NOTIFY_SOCKET="+socket), &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var how error // once it has ended
	go func() {   // which the end of this test waits for
		defer close(ended)
		how = cmd.Wait()
	}()
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if err := hbmfs.At(point).Close(); err != nil {
			t.Error(err)
		}
	}()
	message := make([]byte, 4096)
	_ = systemd.SetReadDeadline(time.Now().Add(patience)) // a socket takes any deadline
	n, err := systemd.Read(message)
	if err != nil || !bytes.HasPrefix(message[:n], []byte("READY=1\nSTATUS=")) {
		t.Fatalf("systemd hears %q, %v: %s", message[:max(n, 0)], err, said.String())
	}
	if have, err := os.ReadFile(filepath.Join(point, "data.bin")); err != nil || string(have) != "as it is" {
		t.Errorf("%q, %v", have, err)
	}
	status, err := os.ReadFile(filepath.Join(point, ".hbmfs", "status"))
	var is struct {
		Passthrough struct {
			Why string `json:"why"`
		} `json:"passthrough"`
		Control struct {
			On       bool `json:"on"`
			ReadOnly bool `json:"read_only_descriptors"`
		} `json:"control"`
	}
	// An old kernel has no passthrough; a daemon that may not use it says "not permitted".
	if err = errors.Join(err, json.Unmarshal(status, &is)); err != nil || !is.Control.On || !is.Control.ReadOnly || strings.Contains(is.Passthrough.Why, "permit") {
		t.Errorf("the daemon lacks a privilege: %v\n%s", err, status)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
		if how != nil {
			t.Errorf("ended with %v: %s", how, said.String())
		}
	case <-time.After(patience):
		t.Errorf("SIGTERM did not end it: %s", said.String())
	}
	if mounted, err := blackbox.IsMounted(point); mounted || err != nil {
		t.Errorf("it left its mount: %v, %v", mounted, err)
	}
}

// asService is the service's command line under the service's restrictions.
func asService(t *testing.T, program, source, point string) *exec.Cmd {
	t.Helper()
	bounding := "-all"
	for _, name := range strings.Fields(setting(t, "CapabilityBoundingSet")) {
		bounding += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	line := strings.NewReplacer("/usr/bin/hbmfs", program, "$COMMAND", strings.TrimPrefix(strings.Trim(setting(t, "Environment"), `"`), "COMMAND="), "$OPTIONS", "--allow-other", "${SOURCE}", source, "${MOUNTPOINT}", point).
		Replace(setting(t, "ExecStart"))
	return exec.CommandContext(t.Context(), "setpriv", append([]string{"--bounding-set", bounding, "--no-new-privs"}, strings.Fields(line)...)...)
}
