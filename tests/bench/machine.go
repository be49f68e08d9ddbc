package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// machine says where the numbers were taken; without it they mean nothing to anybody else.
type machine struct {
	CPU        string  `json:"cpu"`
	CPUs       int     `json:"cpus"`
	MemoryGiB  float64 `json:"memory_gib"`
	Kernel     string  `json:"kernel"`
	Filesystem string  `json:"filesystem"` // of the datasets
	Go         string  `json:"go"`
	Root       bool    `json:"root"` // passthrough is for root only
}

func (m machine) String() string {
	user := "an ordinary user (no passthrough)"
	if m.Root {
		user = "root"
	}
	return fmt.Sprintf("%s, %d CPUs, %.0f GiB of memory, Linux %s, datasets on %s, %s, run as %s",
		m.CPU, m.CPUs, m.MemoryGiB, m.Kernel, m.Filesystem, m.Go, user)
}

// describeMachine never fails: a fact that this system does not tell is "unknown".
func describeMachine(dir string) machine {
	m := machine{
		CPU:        cpuModel(),
		CPUs:       runtime.NumCPU(),
		Kernel:     "unknown",
		Filesystem: filesystem(dir),
		Go:         runtime.Version(),
		Root:       os.Geteuid() == 0,
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		m.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.MemoryGiB = float64(info.Totalram) * float64(info.Unit) / (1 << 30)
	}
	return m
}

func cpuModel() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	for line := range strings.Lines(string(data)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

// filesystem names the type of the mount that holds dir, by device number: a path may have been bound elsewhere.
func filesystem(dir string) string {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "unknown"
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		same := m.Major == int(unix.Major(st.Dev)) && m.Minor == int(unix.Minor(st.Dev))
		return !same, same
	})
	if err != nil || len(mounts) == 0 {
		return "unknown"
	}
	return mounts[0].FSType
}
