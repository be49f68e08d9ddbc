package deploy_test

import (
	"os"
	"os/exec"
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
	output(t, true, "go", "build", "-buildvcs=false", "-o", path, "../../cmd/hbmfs-csi")
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

// The command that the Containerfile runs makes both programs, and they need nothing of the empty image that they go to.
func TestImageCommandBuilds(t *testing.T) {
	text, err := os.ReadFile(deploy("container", "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?s)RUN (CGO_ENABLED=0 .*?/cmd/hbmfs-csi)\n`).FindSubmatch(text)
	if command == nil {
		t.Fatal("the Containerfile builds nothing")
	}
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(string(command[1]), "-o /out/", "-o "+out+"/", 1))
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "TARGETOS=linux", "TARGETARCH=", "VERSION=1.2.3")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for _, name := range []string{"hbmfs", "hbmfs-csi"} {
		program := filepath.Join(out, name)
		if said := output(t, true, program, "--version"); !strings.Contains(said, "1.2.3") {
			t.Errorf("%s --version: %s", name, said)
		}
		if needs := interpreter(t, program); needs != "" {
			t.Errorf("%s needs %s, which is not in an empty image", name, needs)
		}
	}
}
