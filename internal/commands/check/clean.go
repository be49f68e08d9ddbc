package check

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// cleaner copies the lines of a file that matter and are no secret: no addresses, no serial numbers, no UUIDs, no names
// of hosts. Cleaning a clean file changes nothing.
type cleaner func(w *bytes.Buffer, r io.Reader) error

// named keeps nothing of a file but that it is there.
func named(*bytes.Buffer, io.Reader) error { return nil }

// lines calls f for every line of at most a page; longer ones are nothing that we look for.
func lines(r io.Reader, f func(line string)) error {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, long, err := in.ReadLine()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		text := strings.TrimRight(string(line), "\r")
		for long && err == nil {
			_, long, err = in.ReadLine()
		}
		f(text)
	}
}

// keepLines keeps the lines that begin with one of these.
func keepLines(prefixes ...string) cleaner {
	return func(w *bytes.Buffer, r io.Reader) error {
		return lines(r, func(line string) {
			trimmed := strings.TrimSpace(line)
			for _, prefix := range prefixes {
				if strings.HasPrefix(trimmed, prefix) {
					fmt.Fprintln(w, trimmed)
					return
				}
			}
		})
	}
}

// keepSymbols keeps these symbols of kallsyms, without their addresses.
func keepSymbols(symbols ...string) cleaner {
	return func(w *bytes.Buffer, r io.Reader) error {
		return lines(r, func(line string) {
			fields := strings.Fields(line)
			for _, symbol := range symbols {
				if len(fields) >= 3 && fields[2] == symbol {
					fmt.Fprintf(w, "0 %s %s\n", fields[1], symbol)
				}
			}
		})
	}
}

// cleanCmdline keeps the kernel parameters that matter to a reader of a recording: others can hold passwords.
func cleanCmdline(w *bytes.Buffer, r io.Reader) error {
	return lines(r, func(line string) {
		var kept []string
		for word := range strings.FieldsSeq(line) {
			name, _, _ := strings.Cut(word, "=")
			switch name {
			case "iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "arm-smmu.disable_bypass", "pci", "pcie_acs_override", "pcie_ports",
				"nvme_core.multipath", "nvme.poll_queues", "nokaslr", "rootflags", "modprobe.blacklist", "rd.driver.blacklist", "module_blacklist":
				kept = append(kept, word)
			}
		}
		fmt.Fprintln(w, strings.Join(kept, " "))
	})
}

// cleanModules takes the addresses out of /proc/modules.
func cleanModules(w *bytes.Buffer, r io.Reader) error {
	return lines(r, func(line string) {
		if f := strings.Fields(line); len(f) >= 5 {
			fmt.Fprintln(w, strings.Join(f[:5], " "), "0x0")
		}
	})
}

// cleanResource keeps of the places that a PCI device has in memory their sizes, and moves them all to zero.
func cleanResource(w *bytes.Buffer, r io.Reader) error {
	return lines(r, func(line string) {
		size := uint64(barSize([]string{line}, 0))
		fmt.Fprintf(w, "0x0 %#x\n", max(size, 1)-1)
	})
}

// cleanDM cuts a device mapper's UUID ("CRYPT-LUKS2-...") after its kind; all else that it is used on has no secrets.
func cleanDM(w *bytes.Buffer, r io.Reader) error {
	return lines(r, func(line string) {
		for _, known := range []string{"LVM-", "CRYPT-", "mpath-", "part", "DMRAID-", "RAID-", "INTEGRITY-", "VERITY-"} {
			if strings.HasPrefix(line, known) && len(line) > 24 {
				line = strings.TrimSuffix(known, "-")
			}
		}
		fmt.Fprintln(w, line)
	})
}

// cleanDriver keeps the driver's version, without who built it and where.
func cleanDriver(w *bytes.Buffer, r io.Reader) error {
	return lines(r, func(line string) {
		if strings.HasPrefix(line, "NVRM version:") {
			line, _, _ = strings.Cut(line, "(")
			fmt.Fprintln(w, strings.TrimSpace(line))
		}
	})
}

// cleanNVFS takes the lines of nvidia-fs's statistics that name GPUs by their UUID out.
func cleanNVFS(w *bytes.Buffer, r io.Reader) error {
	return lines(r, func(line string) {
		if !strings.Contains(line, "uuid") {
			fmt.Fprintln(w, line)
		}
	})
}

// cleanMounts takes the names of servers and those options of mounts out that we do not judge: they can hold passwords.
func cleanMounts(w *bytes.Buffer, r io.Reader) error {
	return lines(r, func(line string) {
		before, after, ok := strings.Cut(line, " - ")
		f := strings.Fields(after)
		if !ok || len(f) < 3 {
			return
		}
		if i := strings.LastIndexAny(f[1], ":@"); i >= 0 || strings.HasPrefix(f[1], "//") {
			f[1] = "server:/"
		}
		var kept []string
		for option := range strings.SplitSeq(f[2], ",") {
			name, _, _ := strings.Cut(option, "=")
			switch name {
			case "rw", "ro", "data", "dax", "discard", "proto", "vers", "nconnect", "rdma", "port", "allow_other":
				kept = append(kept, option)
			}
		}
		if len(kept) == 0 {
			kept = []string{"rw"}
		}
		fmt.Fprintf(w, "%s - %s %s %s\n", before, f[0], f[1], strings.Join(kept, ","))
	})
}

// cleanCuFile keeps of a cufile.json the settings that are numbers and switches, without comments, and the denylist.
// Addresses of RDMA devices and directories are left out. A file that cannot be parsed is kept as the word "malformed".
func cleanCuFile(w *bytes.Buffer, r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, mostFile))
	if err != nil {
		return err
	}
	var all map[string]any
	if json.Unmarshal(stripComments(data), &all) != nil {
		_, err := w.WriteString("malformed\n")
		return err
	}
	kept := map[string]any{}
	if list, ok := all["denylist"]; ok {
		kept["denylist"] = list
	}
	for _, section := range []string{"profile", "execution", "properties"} {
		if values, ok := all[section].(map[string]any); ok {
			kept[section] = plain(values)
		}
	}
	return json.NewEncoder(w).Encode(kept)
}

// plain keeps numbers and booleans.
func plain(values map[string]any) map[string]any {
	kept := map[string]any{}
	for key, value := range values {
		switch value.(type) {
		case float64, bool:
			kept[key] = value
		}
	}
	return kept
}

// stripComments blanks the comments of JSON with comments, as NVIDIA's own cufile.json has them.
func stripComments(in []byte) []byte {
	out := bytes.Clone(in)
	for i := 0; i < len(out); i++ {
		switch {
		case out[i] == '"':
			for i++; i < len(out) && out[i] != '"'; i++ {
				if out[i] == '\\' {
					i++
				}
			}
		case out[i] == '/' && i+1 < len(out) && out[i+1] == '/':
			for ; i < len(out) && out[i] != '\n'; i++ {
				out[i] = ' '
			}
		case out[i] == '/' && i+1 < len(out) && out[i+1] == '*':
			end := len(out)
			if n := bytes.Index(out[i+2:], []byte("*/")); n >= 0 {
				end = i + 2 + n + 2
			}
			for ; i < end; i++ {
				out[i] = ' '
			}
			i--
		}
	}
	return out
}
