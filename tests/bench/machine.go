package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

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

// describeMachine never fails: what this system does not tell is "unknown".
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
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || unix.Stat(dir, &st) != nil {
		return "unknown"
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for line := range strings.Lines(string(data)) {
		before, after, found := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if found && len(fields) > 2 && fields[2] == device {
			kind, _, _ := strings.Cut(after, " ")
			return kind
		}
	}
	return "unknown"
}
