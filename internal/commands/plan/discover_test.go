package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sysfs makes a tree as /sys has it: devices in their bridges' folders, and links to them by address.
func sysfs(t *testing.T, devices map[string]map[string]string) string {
	t.Helper()
	root := t.TempDir()
	byAddress := filepath.Join(root, "bus/pci/devices")
	if err := os.MkdirAll(byAddress, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, attributes := range devices {
		dir := filepath.Join(root, "devices", path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range attributes {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(dir, filepath.Join(byAddress, filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func pci(class, vendor, speed, lanes, numa string) map[string]string {
	a := map[string]string{"class": class, "vendor": vendor, "numa_node": numa}
	if speed != "" {
		a["max_link_speed"], a["max_link_width"] = speed, lanes
		a["current_link_speed"] = "2.5 GT/s PCIe" // an idle GPU
	}
	return a
}

// Two GPUs and a drive behind one switch of socket 0, one GPU behind another of socket 1.
func TestDiscoverASwitchedNode(t *testing.T) {
	bridge := func(numa string) map[string]string { return pci("0x060400", "0x1000", "32.0 GT/s PCIe", "16", numa) }
	root := sysfs(t, map[string]map[string]string{
		"pci0000:00/0000:00:01.0":                                        bridge("0"),
		"pci0000:00/0000:00:01.0/0000:01:00.0":                           bridge("0"),
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0":              bridge("0"),
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0":              bridge("0"),
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0":              bridge("0"),
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0": pci("0x030200", "0x10de", "32.0 GT/s PCIe", "16", "0"),
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0": pci("0x030200", "0x10de", "32.0 GT/s PCIe", "16", "0"),
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0": pci("0x010802", "0x144d", "16.0 GT/s PCIe", "4", "0"),
		"pci0000:80/0000:80:01.0":                                        bridge("1"),
		"pci0000:80/0000:80:01.0/0000:81:00.0":                           bridge("1"),
		"pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0":              bridge("1"),
		"pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0": pci("0x030200", "0x10de", "32.0 GT/s PCIe", "16", "1"),
		"pci0000:00/0000:00:02.0":                                        pci("0x030000", "0x1a03", "", "", "0"), // a server's screen
	})
	n, err := Discover(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range n.Links {
		got = append(got, fmt.Sprintf("%s < %s", l.Name, l.Parent))
	}
	for _, g := range n.GPUs {
		got = append(got, fmt.Sprintf("gpu %s < %s gen %d x%d", g.Name, g.Parent, g.Gen, g.Lanes))
	}
	for _, s := range n.Storage {
		got = append(got, fmt.Sprintf("drive %s < %s gen %d x%d direct %v", s.Name, s.Parent, s.Gen, s.Lanes, s.Direct))
	}
	want := []string{
		"uplink of 0000:01:00.0 < ", "between NUMA nodes 0 and 1 < ", "uplink of 0000:81:00.0 < between NUMA nodes 0 and 1",
		"gpu 0000:03:00.0 < uplink of 0000:01:00.0 gen 5 x16", "gpu 0000:04:00.0 < uplink of 0000:01:00.0 gen 5 x16",
		"gpu 0000:83:00.0 < uplink of 0000:81:00.0 gen 5 x16", "drive 0000:05:00.0 < uplink of 0000:01:00.0 gen 4 x4 direct false",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("found\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if notes := strings.Join(n.Notes, "\n"); !strings.Contains(notes, "50 GB/s between the sockets") || !strings.Contains(notes, "hbmfs check") {
		t.Errorf("the assumptions are not told: %s", notes)
	}
}

// A virtual machine shows a GPU on its root bus, without a link of its own.
func TestDiscoverAVirtualMachine(t *testing.T) {
	n, err := Discover(sysfs(t, map[string]map[string]string{"pci0000:00/0000:00:05.0": pci("0x030200", "0x10de", "", "", "-1")}))
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Links) != 0 || n.GPUs[0].Gen != 4 || !strings.Contains(strings.Join(n.Notes, "\n"), "0000:00:05.0 does not tell its link") {
		t.Errorf("found %+v", n)
	}
}

func TestDiscoverWithoutGPUs(t *testing.T) {
	for _, root := range []string{t.TempDir(), sysfs(t, nil)} {
		if _, err := Discover(root); err == nil || !strings.Contains(err.Error(), "--example") {
			t.Errorf("%v does not say what to do", err)
		}
	}
}
