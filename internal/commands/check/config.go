package check

import (
	"cmp"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"
)

// cufileConfig is the part of a cufile.json that we judge. A nil field is not in it.
type cufileConfig struct {
	Malformed  bool `json:"-"`
	Properties struct {
		AllowCompat *bool    `json:"allow_compat_mode"`
		ForceCompat *bool    `json:"force_compat_mode"`
		P2PDMA      *bool    `json:"use_pci_p2pdma"`
		PinnedKB    *float64 `json:"max_device_pinned_mem_size_kb"`
	} `json:"properties"`
	Denylist struct {
		Drivers     []string `json:"drivers"`
		Devices     []string `json:"devices"`
		Mounts      []string `json:"mounts"`
		Filesystems []string `json:"filesystems"`
	} `json:"denylist"`
}

func (m *Machine) readCuFile(s *Recording) {
	configs := []string{ownConfig, "etc/cufile.json"}
	for _, dir := range s.list("usr/local") {
		if strings.HasPrefix(dir, "cuda") {
			configs = append(configs, "usr/local/"+dir+"/gds/cufile.json")
		}
	}
	for _, name := range configs {
		if text, ok := s.text(name); ok && m.Config == "" {
			m.Config, m.Properties = "/"+name, parseConfig(text)
			if name == ownConfig {
				m.Config = "the file that CUFILE_ENV_PATH_JSON names"
			}
		}
	}
	m.Libraries = s.libraries()
}

func parseConfig(text string) (c cufileConfig) {
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return cufileConfig{Malformed: true}
	}
	return c
}

// libraries gives the real files of libcufile, the newest first.
func (s *Recording) libraries() []string {
	var all []string
	for name, e := range s.entries {
		base := path.Base(name)
		if e.kind == kindFile && (strings.HasPrefix(base, "libcufile.so.") || base == "libcufile.so") {
			all = append(all, "/"+name)
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		older, newer := libraryVersion(a), libraryVersion(b)
		return cmp.Or(slices.Compare(newer[:], older[:]), strings.Compare(a, b))
	})
	return all
}

// libraryVersion reads "libcufile.so.1.15.1"; zero where the name says none, as in pip's packages.
func libraryVersion(name string) Version {
	match := regexp.MustCompile(`\.so\.(\d+\.\d+\.\d+)$`).FindStringSubmatch(name)
	if match == nil {
		return Version{}
	}
	return parseVersion(match[1])
}
