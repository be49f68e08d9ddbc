package check

import "strings"

// A family of distributions, whose package manager and names of packages are the same.
const (
	debian = "debian"
	ubuntu = "ubuntu"
	redHat = "red hat"
	suse   = "suse"
)

// family is that of the system that the command runs in, "" where it is none of these.
func (m *Machine) family() string {
	for _, f := range []struct{ name, family string }{
		{"Debian", debian}, {"Ubuntu", ubuntu}, {"Linux Mint", ubuntu}, {"Pop!_OS", ubuntu}, {"SUSE", suse}, {"SLES", suse},
		{"Red Hat", redHat}, {"Rocky", redHat}, {"AlmaLinux", redHat}, {"CentOS", redHat}, {"Fedora", redHat}, {"Oracle", redHat}, {"Amazon", redHat},
	} {
		if strings.Contains(m.OS, f.name) {
			return f.family
		}
	}
	return ""
}

// hostFamily is that of the host, which a container does not show.
func (m *Machine) hostFamily() string {
	if m.Container != "" {
		return ""
	}
	return m.family()
}

// installs gives the command that installs packages of a family, or words where it is not known.
func installs(family, deb, rpm string) string {
	switch family {
	case debian, ubuntu:
		return "apt-get install -y " + deb
	case redHat:
		return "dnf install -y " + rpm
	case suse:
		return "zypper install -y " + rpm
	}
	return "install " + deb
}

// install installs packages where the command runs.
func (m *Machine) install(deb, rpm string) string { return installs(m.family(), deb, rpm) }

// hostInstall installs packages on the host, and runs the commands that follow there.
func (m *Machine) hostInstall(deb, rpm, then string) string {
	family := m.hostFamily()
	link := " && "
	if family == "" {
		link = ", then " // of words, not of commands
	}
	return m.onHost(installs(family, deb, rpm) + link + then)
}

// newerKernel installs the newest kernel that the distribution has.
func (m *Machine) newerKernel() string {
	deb, rpm := "linux-image-generic", "kernel"
	switch m.hostFamily() {
	case debian:
		deb = "linux-image-" + strings.NewReplacer("aarch64", "arm64", "x86_64", "amd64").Replace(m.Arch)
	case suse:
		rpm = "kernel-default"
	case "":
		deb = "a newer kernel"
	}
	return m.hostInstall(deb, rpm, "reboot")
}

// rebuild gives the command that makes options of modules count, which takes a boot.
func (m *Machine) rebuild() string {
	switch m.hostFamily() {
	case debian, ubuntu:
		return "update-initramfs -u && reboot"
	case redHat, suse:
		return "dracut -f && reboot"
	}
	return "rebuild the initramfs and reboot"
}

// configure runs a command that writes options of modules, and makes them count.
func (m *Machine) configure(command string) string {
	if m.hostFamily() == "" {
		return m.onHost(command + ", then " + m.rebuild())
	}
	return m.onHost(command + " && " + m.rebuild())
}

// bootWith gives the command that adds a kernel parameter.
func (m *Machine) bootWith(parameter string) string {
	switch m.hostFamily() {
	case debian, ubuntu:
		return m.onHost(`sed -i 's/^GRUB_CMDLINE_LINUX="/&` + parameter + ` /' /etc/default/grub && update-grub && reboot`)
	case redHat:
		return m.onHost("grubby --update-kernel=ALL --args='" + parameter + "' && reboot")
	case suse:
		return m.onHost("update-bootloader --add-option " + parameter + " && reboot")
	}
	return m.onHost("add " + parameter + " to the kernel's command line and reboot")
}

// onHost says where a command is to be run, where that is not here.
func (m *Machine) onHost(command string) string {
	if m.Container != "" {
		return "on the host: " + command
	}
	return command
}
