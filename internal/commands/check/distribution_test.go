package check

import (
	"slices"
	"strings"
	"testing"
)

// Fixes name the distribution's own packages and tools, and the host's only where the host is seen.
func TestFixesAreTheDistributions(t *testing.T) {
	for os, want := range map[string]struct{ kernel, root string }{
		"Debian GNU/Linux 12 (bookworm)":      {"apt-get install -y linux-image-amd64 && reboot", "update-grub && reboot"},
		"Ubuntu 24.04 LTS":                    {"apt-get install -y linux-image-generic && reboot", "update-grub && reboot"},
		"Rocky Linux 9.5 (Blue Onyx)":         {"dnf install -y kernel && reboot", "grubby --update-kernel=ALL --args='rootflags=data=ordered' && reboot"},
		"openSUSE Leap 15.6":                  {"zypper install -y kernel-default && reboot", "update-bootloader --add-option rootflags=data=ordered && reboot"},
		"Arch Linux":                          {"install a newer kernel, then reboot", "add rootflags=data=ordered to the kernel's command line and reboot"},
		"Debian GNU/Linux 12 in a container":  {"on the host: install a newer kernel, then reboot", "on the host: add rootflags=data=ordered to the kernel's command line and reboot"},
		"Rocky Linux 9.5 in its container":    {"on the host: install a newer kernel, then reboot", "on the host: add rootflags=data=ordered to the kernel's command line and reboot"},
		"Ubuntu Core 24, on arm64 (aarch64)":  {"apt-get install -y linux-image-generic && reboot", "update-grub && reboot"},
		"Debian GNU/Linux 13 (trixie), arm64": {"apt-get install -y linux-image-arm64 && reboot", "update-grub && reboot"},
	} {
		f := server()
		f["etc/os-release"] = `PRETTY_NAME="` + os + `"`
		f["proc/sys/kernel/osrelease"] = "5.3.0"
		f["proc/self/mountinfo"] = "31 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n"
		f.looked("/shard.bin", "259:1")
		if strings.Contains(os, "container") {
			f[".dockerenv"] = ""
		}
		if strings.Contains(os, "arm64") {
			f["proc/sys/kernel/arch"] = "aarch64"
		}
		r := Judge(Read(f.capture(t)), "", 0)
		for name, fix := range map[string]string{"version": want.kernel, "filesystem": want.root} {
			i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Name == name })
			if i < 0 || !strings.HasSuffix(r.Findings[i].Fix, fix) {
				t.Errorf("%s: the fix of %s is %q, want %q", os, name, r.Findings[max(0, i)].Fix, fix)
			}
		}
	}
}
