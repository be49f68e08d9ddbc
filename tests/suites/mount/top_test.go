package mount_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	told "github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// topMount is the part of a mount in the output of top that these tests read.
type topMount struct {
	MountPoint string `json:"mount_point"`
	State      string `json:"state"`
	Error      string `json:"error"`
	Rates      *struct {
		Seconds float64 `json:"seconds"`
	} `json:"rates"`
	Status *told.Status `json:"status"`
}

// top runs hbmfs top and finds mounts of the test in it; the machine may have others.
func top(t *testing.T, points ...string) (found []topMount) {
	t.Helper()
	r := run(t, "top", "--once", "--json", "--interval", "100ms", "--timeout", "3s")
	var out struct {
		Mounts []topMount `json:"mounts"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil || r.Code != 0 {
		t.Fatalf("top --once --json: exit code %d, %v: %s%s", r.Code, err, r.Stdout, r.Stderr)
	}
	for _, point := range points {
		i := slices.IndexFunc(out.Mounts, func(m topMount) bool { return m.MountPoint == point })
		if i < 0 {
			t.Fatalf("top does not know the mount at %s:\n%s", point, r.Stdout)
		}
		found = append(found, out.Mounts[i])
	}
	return found
}

// A daemon that is stopped, or gone, is shown as such, and the mount beside it as it is.
func TestTopOfAStoppedDaemon(t *testing.T) {
	well, stopped := mount(t, mounttest.Golden(t, "nanogpt")), mount(t, mounttest.Golden(t, "megatron-merge"), "--no-keeper")
	must(t, blackbox.Stop(stopped.PID))
	resume := func() error { return syscall.Kill(stopped.PID, syscall.SIGCONT) }
	t.Cleanup(func() { _ = resume() }) // before the mounts are taken away; the test does it, too
	waitFor := func(what string, is func(found []topMount) bool) {
		t.Helper()
		var found []topMount
		if !blackbox.Within(4*patience, func() bool { found = top(t, well.Point, stopped.Point); return is(found) }) {
			t.Errorf("%s: top says %+v", what, found)
		}
	}
	waitFor("one daemon is stopped", func(found []topMount) bool {
		return found[0].State == "ok" && found[0].Rates != nil && found[0].Rates.Seconds > 0 && found[0].Status.PID == well.PID &&
			found[1].State == "not answering" && found[1].Error != "" && found[1].Status == nil
	})
	must(t, resume())
	waitFor("it goes on", func(found []topMount) bool {
		return found[0].State == "ok" && found[1].State == "ok" && found[1].Status.PID == stopped.PID
	})
	stopped.kill(t)
	waitFor("it is killed", func(found []topMount) bool { return found[0].State == "ok" && found[1].State == "dead" })

	r := run(t, "top", "--once", "--interval", "100ms", "--timeout", "10s")
	if r.Code != 0 || !strings.Contains(r.Stdout, "READERS/S") || !strings.Contains(r.Stdout, "its daemon is gone") {
		t.Errorf("top --once: exit code %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	r = run(t, "top", "--once", "--metrics", "--timeout", "10s")
	for _, line := range []string{`hbmfs_up{mount="` + well.Point + `"} 1`, `hbmfs_up{mount="` + stopped.Point + `"} 0`, `hbmfs_objects{mount="` + well.Point + `"} `} {
		if r.Code != 0 || !strings.Contains(r.Stdout, line) {
			t.Errorf("top --once --metrics, exit code %d, has no %q:\n%s%s", r.Code, line, r.Stdout, r.Stderr)
		}
	}
	checkMetrics(t, r.Stdout)
}

// Files are counted as open until the kernel says that they are closed, which it does some time after close(2).
func TestOpenFilesAreCounted(t *testing.T) {
	source, _ := mounttest.ShardedTokens(t, suite, 2, 1000)
	m := mount(t, source)
	var open []*os.File
	for _, name := range []string{"shard_000000.bin", "shard_000001.bin", filepath.Join(".hbmfs", "views", "tokens.bin")} {
		f, err := os.Open(m.Path(name))
		must(t, err)
		open = append(open, f)
	}
	counted := func(want int) {
		t.Helper()
		var s struct {
			OpenFiles struct{ Passthrough, Daemon int } `json:"open_files"`
		}
		if !blackbox.Within(patience, func() bool {
			text, err := os.ReadFile(m.Path(".hbmfs", "status"))
			must(t, err)
			must(t, json.Unmarshal(text, &s))
			return s.OpenFiles.Passthrough+s.OpenFiles.Daemon == want
		}) {
			t.Errorf("open files are %+v, want %d", s.OpenFiles, want)
		}
	}
	counted(len(open))
	for _, f := range open {
		must(t, f.Close())
	}
	counted(0)
}

// checkMetrics has Prometheus' own tool look at metrics, where it is installed.
func checkMetrics(t *testing.T, text string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("not checked by promtool, which is not installed")
		return
	}
	cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s\n%s", err, out, text)
	}
}

// observability is where the dashboard and the alerts are.
func observability(name string) string {
	return filepath.Join("..", "..", "..", "deploy", "observability", name)
}

// metricNames finds what looks like a metric of a mount.
func metricNames(text string) []string {
	return regexp.MustCompile(`\bhbmfs_[a-z_]+\b`).FindAllString(text, -1)
}

// Every metric that the dashboard and the alerts ask for is one that a mount, or top, has.
func TestDashboardAsksForMetricsThatAreThere(t *testing.T) {
	blackbox.NeedFUSE(t)
	m := mount(t, mounttest.NewWeb(t).URL, "--cache-dir", suite.NewDir(t), "--cache-segment", fmt.Sprint(mounttest.Mebibyte), "--cache-min-free", "1")
	if _, err := os.ReadFile(m.Path("first.dat")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(m.Path(".hbmfs", "metrics"))
	must(t, err)
	checkMetrics(t, string(text))
	there := map[string]bool{"hbmfs_up": true, "hbmfs_passthrough_off": true, "hbmfs_csi_host_up": true}                             // of top, of mounts without passthrough, of hbmfs-csi
	volume := told.Status{Checkpoints: &told.Checkpoints{Drain: &told.Drain{}}, KV: &told.KV{Namespaces: make([]told.Namespace, 1)}} // tests/suites/origins and tests/suites/kv have real ones
	for _, name := range metricNames(string(text) + volume.Metrics()) {
		there[name] = true
	}
	asked := map[string]bool{}
	for _, file := range []string{"dashboard.json", "alerts.yml"} {
		text, err := os.ReadFile(observability(file))
		must(t, err)
		names := metricNames(string(text))
		for _, name := range names {
			asked[name] = true
		}
		if len(names) < 10 {
			t.Errorf("%s asks for %d metrics only", file, len(names))
		}
		for _, name := range names {
			if !there[name] {
				t.Errorf("%s asks for %s, which no mount has", file, name)
			}
		}
	}
	for _, name := range metricNames(volume.Metrics()) {
		if strings.HasPrefix(name, "hbmfs_kv_") && !asked[name] && name != "hbmfs_kv_blocks" && name != "hbmfs_kv_memory_held" { // hbmfs kv stats has these
			t.Errorf("neither the dashboard nor an alert asks for %s", name)
		}
	}
}

// dashboard is the part of Grafana's format that must be right for it to show anything.
type dashboard struct {
	Title  string `json:"title"`
	UID    string `json:"uid"`
	Schema int    `json:"schemaVersion"`
	Panels []struct {
		ID      int    `json:"id"`
		Title   string `json:"title"`
		About   string `json:"description"`
		Type    string `json:"type"`
		GridPos struct {
			X, Y, W, H int
		} `json:"gridPos"`
		Targets []struct {
			Expr  string `json:"expr"`
			RefID string `json:"refId"`
		} `json:"targets"`
	} `json:"panels"`
}

func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(observability("dashboard.json"))
	must(t, err)
	var d dashboard
	must(t, json.Unmarshal(text, &d))
	if d.Title == "" || d.UID == "" || d.Schema < 36 || len(d.Panels) < 8 {
		t.Errorf("the dashboard is %+v", d)
	}
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" || p.Type == "" {
			t.Errorf("panel %d %q of type %q: an id of its own, a title and a type are needed", p.ID, p.Title, p.Type)
		}
		ids[p.ID] = true
		if p.Type != "row" && (len(strings.Fields(p.About)) < 5 || !strings.HasSuffix(p.About, ".")) {
			t.Errorf("panel %q has no sentence that describes it: %q", p.Title, p.About)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q, or beyond the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || target.RefID == "" || !strings.Contains(target.Expr, "$mount") {
				t.Errorf("panel %q asks %q as %q: a name of its own and the chosen mounts are needed", p.Title, target.Expr, target.RefID)
			}
			refs[target.RefID] = true
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks nothing", p.Title)
		}
	}
}

// Each alert has a case of its own, and a section of the page for operators.
func TestAlertsAreTestedAndExplained(t *testing.T) {
	rules, err := os.ReadFile(observability("alerts.yml"))
	must(t, err)
	cases, err := os.ReadFile(observability("alerts_test.yml"))
	must(t, err)
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guide", "operations.md"))
	must(t, err)
	names := regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1)
	if len(names) < 10 {
		t.Errorf("only %d alerts were found", len(names))
	}
	for _, name := range names {
		if !strings.Contains(string(cases), "alertname: "+name[1]+"\n") {
			t.Errorf("%s has no case in alerts_test.yml", name[1])
		}
		if !strings.Contains(string(page), "### "+name[1]+"\n") || !strings.Contains(string(rules), "docs/guide/operations.md#"+strings.ToLower(name[1])+"\n") {
			t.Errorf("%s has no section in docs/guide/operations.md, or does not name it", name[1])
		}
	}
}

// The alerts fire on what they are for, and on nothing else.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool, of Prometheus")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = observability("")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}

// Status says what a mount shows, of any path in it, and ends with 3 where its daemon is gone.
func TestStatus(t *testing.T) {
	m := mount(t, mounttest.Golden(t, "nanogpt"), "--no-keeper")
	for _, path := range []string{m.Point, m.Path("train.bin"), m.Path(".hbmfs")} {
		r := run(t, "status", path)
		for _, want := range []string{m.Point + ": ok", "2 files", "tokens u16", "passthrough", m.Source} {
			if r.Code != 0 || !strings.Contains(r.Stdout, want) {
				t.Errorf("status %s: exit code %d, no %q in\n%s%s", path, r.Code, want, r.Stdout, r.Stderr)
			}
		}
	}
	if r := run(t, "status", filepath.Dir(m.Source)); r.Code != 1 || !strings.Contains(r.Stderr, "lies in no mount of hbmfs") {
		t.Errorf("status of no mount: exit code %d: %s", r.Code, r.Stderr)
	}
	if r := run(t, "__complete", "umount", ""); !strings.Contains(r.Stdout, m.Point+"\n") {
		t.Errorf("umount completes to %q, without %s", r.Stdout, m.Point)
	}
	m.kill(t)
	if r := run(t, "status", m.Point); r.Code != 3 || !strings.Contains(r.Stdout, m.Point+": dead") {
		t.Errorf("status of a mount whose daemon is gone: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	var out struct {
		Mounts []topMount `json:"mounts"`
	}
	if r := run(t, "status", "--json", m.Point); r.Code != 3 || json.Unmarshal([]byte(r.Stdout), &out) != nil || len(out.Mounts) != 1 || out.Mounts[0].State != "dead" {
		t.Errorf("status --json: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
}
