package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var chart = deploy("helm", "hbmfs")

// The chart is clean, and what it makes is what Kubernetes knows, with its own values and with those of each file.
func TestChart(t *testing.T) {
	k8scheck := given(t, "HBMFS_K8SCHECK")
	values := files(t, filepath.Join(chart, "ci", "*.yaml"))
	said := output(t, true, k8scheck, append([]string{"chart", chart}, values...)...)
	for _, name := range append(values, "own values") {
		caches := ""
		if base := filepath.Base(name); base == "everything.yaml" || base == "caches.yaml" {
			caches = "ConfigMap hbmfs-caches, DaemonSet hbmfs-caches, "
		}
		if !strings.Contains(said, "with "+name+": ServiceAccount hbmfs, "+caches+"DaemonSet hbmfs-host, DaemonSet hbmfs-plugin, CSIDriver csi.hbmfs.io") {
			t.Errorf("nothing came of %s:\n%s", name, said)
		}
	}
	if !strings.Contains(said, "everything.yaml: ServiceAccount hbmfs, ConfigMap hbmfs-caches, DaemonSet hbmfs-caches, DaemonSet hbmfs-host, DaemonSet hbmfs-plugin, CSIDriver csi.hbmfs.io, PodMonitor hbmfs") {
		t.Errorf("no PodMonitor with everything.yaml:\n%s", said)
	}
}

// Every value is in everything.yaml, so that each is rendered; and each is documented.
func TestEveryValueIsRendered(t *testing.T) {
	defaults := documents(t, filepath.Join(chart, "values.yaml"))[0].body
	everything := documents(t, filepath.Join(chart, "ci", "everything.yaml"))[0].body
	var compare func(at string, want, have map[string]any)
	compare = func(at string, want, have map[string]any) {
		for name, value := range want {
			given, ok := have[name]
			if !ok {
				t.Errorf("ci/everything.yaml does not set %s%s", at, name)
				continue
			}
			inner, isMap := value.(map[string]any)
			if innerGiven, ok := given.(map[string]any); isMap && ok && name != "resources" {
				compare(at+name+".", inner, innerGiven)
			}
		}
	}
	compare("", defaults, everything)

	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var comment bool
	for i, line := range strings.Split(string(text), "\n") {
		key := regexp.MustCompile(`^\s*[A-Za-z]+:`).MatchString(line)
		group := strings.HasSuffix(line, ":") || strings.Contains(line, "affinity") // whose keys say it, or that stands with nodeSelector
		requests := regexp.MustCompile(`^\s*(requests|limits|image):`).MatchString(line)
		if key && !group && !requests && !comment {
			t.Errorf("values.yaml:%d: %q has no comment above it", i+1, line)
		}
		comment = strings.HasPrefix(strings.TrimSpace(line), "#")
	}
}

// Values that are misspelt, or that could not work, are refused before anything is installed.
func TestChartRefusesBadValues(t *testing.T) {
	k8scheck := given(t, "HBMFS_K8SCHECK")
	bad := files(t, "testdata/refused/*.yaml")
	said := output(t, true, k8scheck, append([]string{"refused", chart}, bad...)...)
	for file, reason := range map[string]string{
		"misspelt.yaml": "additional properties 'cachedir' not allowed", "relative-path.yaml": "at '/stateDir'",
		"path-that-is-yaml.yaml": "at '/cacheDir'", "free-in-percent.yaml": "at '/cacheMinFree'", "kv-memory-of-kubernetes.yaml": "at '/kvMemory'", "kv-with-a-slash.yaml": "at '/kvDirs/0'", "tag-that-moves.yaml": "at '/image/tag'", "monitor-without-port.yaml": "set metrics.port",
		"caches-without-origin.yaml": "at '/caches/origin'", "caches-with-a-path.yaml": "at '/caches/origin'", "cache-on-no-disk.yaml": "at '/caches/dir'",
	} {
		if !regexp.MustCompile(regexp.QuoteMeta(file) + ": refused: .*" + regexp.QuoteMeta(reason)).MatchString(said) {
			t.Errorf("%s was not refused because of %q:\n%s", file, reason, said)
		}
	}
}

// deploy/kubernetes/hbmfs.yaml is what the chart makes.
func TestManifestsAreTheChart(t *testing.T) {
	k8scheck := given(t, "HBMFS_K8SCHECK")
	have, err := os.ReadFile(deploy("kubernetes", "hbmfs.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if want := output(t, true, k8scheck, "render", chart); want != string(have) {
		t.Error("deploy/kubernetes/hbmfs.yaml is stale: run make chart")
	}
}

// All manifests and examples are what Kubernetes knows.
func TestManifestsDecode(t *testing.T) {
	k8scheck := given(t, "HBMFS_K8SCHECK")
	all := append(files(t, deploy("kubernetes", "*.yaml")), files(t, deploy("examples", "*.yaml"))...)
	said := output(t, true, k8scheck, append([]string{"decode"}, all...)...)
	for _, name := range all {
		if !strings.Contains(said, name+": ") {
			t.Errorf("nothing was said of %s:\n%s", name, said)
		}
	}
}

// The checks find what they are there for.
func TestBrokenManifestsAreFound(t *testing.T) {
	k8scheck := given(t, "HBMFS_K8SCHECK")
	for file, reason := range map[string]string{
		"unknown-field.yaml":        `unknown field "spec.attachRequires"`,
		"field-twice.yaml":          `"attachRequired" already set in map`,
		"wrong-type.yaml":           "cannot unmarshal string",
		"unknown-kind.yaml":         `no kind "CSIDrivers" is registered`,
		"no-name.yaml":              "it has no metadata.name",
		"missing-volume.yaml":       "the pod has no volume data",
		"unused-volume.yaml":        "nobody mounts volume data",
		"propagation.yaml":          "which only a privileged container may be",
		"selector.yaml":             "does not select the template's labels",
		"image-without-tag.yaml":    "has no version",
		"probe-without-port.yaml":   "a probe asks port healthz",
		"job-that-restarts.yaml":    "a Job takes Never or OnFailure",
		"cluster-policy.yaml":       `unknown field "enable"`,
		"pod-monitor.yaml":          `unknown field "spec.podMetricsEndpoint"`,
		"comments-and-nothing.yaml": "no document in it",
	} {
		if said := output(t, false, k8scheck, "decode", filepath.Join("testdata", "broken", file)); !strings.Contains(said, reason) {
			t.Errorf("%s: want %q: %s", file, reason, said)
		}
	}
	if have := files(t, "testdata/broken/*.yaml"); len(have) != 15 {
		t.Errorf("%d broken manifests, and 15 are tried", len(have))
	}
}

// Kubernetes' own admission checks have nothing against pods with volumes, nothing but hostPath against the plugin, and against
// the host what it cannot do without.
func TestPodSecurity(t *testing.T) {
	k8scheck := given(t, "HBMFS_K8SCHECK")
	examples := files(t, deploy("examples", "*.yaml"))
	said := output(t, true, k8scheck, append([]string{"security", "restricted"}, examples...)...)
	for _, pod := range []string{"Pod reader-of-a-directory", "Pod reader-with-a-role", "Pod reader", "Job save", "Pod reader-of-checkpoints", "Deployment serve", "Deployment llama", "Pod serve-alone", "Job train", "Job pack", "Job pack-join"} {
		if !strings.Contains(said, pod+": restricted: admitted\n") {
			t.Errorf("%s is not admitted:\n%s", pod, said)
		}
	}
	// libcufile wants udev's database of the node; that is all.
	if !strings.Contains(said, "Pod check: restricted: forbidden: restricted volume types\n") || strings.Count(said, "\n") != 12 {
		t.Errorf("other pods, or other reasons:\n%s", said)
	}
	manifest := deploy("kubernetes", "hbmfs.yaml")
	for level, lines := range map[string][]string{
		"baseline": {
			"DaemonSet hbmfs-host: baseline: forbidden: host namespaces, hostPath volumes, privileged",
			"DaemonSet hbmfs-plugin: baseline: forbidden: hostPath volumes",
		},
		"restricted": {"DaemonSet hbmfs-plugin: restricted: forbidden: restricted volume types, runAsNonRoot != true"},
	} {
		said := output(t, true, k8scheck, "security", level, manifest)
		for _, line := range lines {
			if !strings.Contains(said, manifest+": "+line+"\n") {
				t.Errorf("want %q:\n%s", line, said)
			}
		}
	}
}

// The PodMonitor selects the plugin alone, and asks a port that it has.
func TestPodMonitorFindsThePlugin(t *testing.T) {
	k8scheck := given(t, "HBMFS_K8SCHECK")
	all := parse(t, "everything.yaml", []byte(output(t, true, k8scheck, "render", chart, filepath.Join(chart, "ci", "everything.yaml"))))
	at := func(node map[string]any, path ...string) map[string]any {
		for _, name := range path {
			node, _ = node[name].(map[string]any)
		}
		return node
	}
	var selector map[string]any
	var port any
	for _, d := range all {
		if d.body["kind"] == "PodMonitor" {
			selector = at(d.body, "spec", "selector", "matchLabels")
			port = at(d.body, "spec")["podMetricsEndpoints"].([]any)[0].(map[string]any)["port"]
		}
	}
	var selected []any
	for _, d := range all {
		labels := at(d.body, "spec", "template", "metadata", "labels")
		matches := d.body["kind"] == "DaemonSet"
		for name, value := range selector {
			matches = matches && labels[name] == value
		}
		if !matches {
			continue
		}
		selected = append(selected, at(d.body, "metadata")["name"])
		var has bool
		visit(d.body, func(node map[string]any) { has = has || (node["containerPort"] != nil && node["name"] == port) })
		if !has {
			t.Errorf("%v has no port %v", selected, port)
		}
	}
	if len(selected) != 1 || selected[0] != "hbmfs-plugin" {
		t.Errorf("the PodMonitor selects %v", selected)
	}
}
