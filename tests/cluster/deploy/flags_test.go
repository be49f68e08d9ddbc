package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// driver returns a built hbmfs-csi: the one that HBMFS_CSI names, or a new one.
func driver(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("HBMFS_CSI"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "hbmfs-csi")
	output(t, true, "go", "build", "-buildvcs=false", "-o", path, "../../../cmd/hbmfs-csi")
	return path
}

// Every flag in the manifests is one of the driver, and every flag of the driver is set or left out on purpose.
func TestFlagsAreTheDrivers(t *testing.T) {
	program := driver(t)
	manifest := parse(t, "everything.yaml", []byte(output(t, true, given(t, "HBMFS_K8SCHECK"), "render", chart, filepath.Join(chart, "ci", "everything.yaml"))))
	for _, role := range []struct {
		container string
		command   []string
		leftOut   string
	}{
		// The name of the driver is part of every volume; hbmfs lies beside hbmfs-csi in the image.
		{"plugin", []string{"--help"}, "driver-name help version"},
		{"host", []string{"host", "--help"}, "driver-name hbmfs help"},
	} {
		known := map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+) `).FindAllStringSubmatch(output(t, true, program, role.command...), -1) {
			known[m[1]] = true
		}
		used := map[string]bool{}
		for _, d := range manifest {
			visit(d.body, func(node map[string]any) {
				args, ok := node["args"].([]any)
				if !ok || node["name"] != role.container {
					return
				}
				for _, arg := range args {
					name, _, _ := strings.Cut(strings.TrimPrefix(arg.(string), "--"), "=")
					used[name] = true
				}
			})
		}
		if len(used) < 4 {
			t.Fatalf("the %s has the flags %v only", role.container, used)
		}
		for name := range used {
			if !known[name] {
				t.Errorf("the %s has no flag --%s", role.container, name)
			}
		}
		for name := range known {
			if !used[name] && !strings.Contains(" "+role.leftOut+" ", " "+name+" ") {
				t.Errorf("the chart does not set --%s of the %s", name, role.container)
			}
		}
	}
}
