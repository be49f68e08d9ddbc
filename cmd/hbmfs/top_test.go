package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/hbmfs/hbmfs/internal/aside"
	"github.com/hbmfs/hbmfs/internal/top"
)

// topInstant is when the samples of these tests were taken.
func topInstant() time.Time { return time.Date(2026, 11, 21, 15, 4, 5, 0, time.UTC) }

// sampleOf is an answer of a mount with some numbers in it, which are n times what they are at first.
func sampleOf(point string, n int64) top.Sample {
	status := map[string]any{
		"pid": 4242, "source": "s3://datasets/pile\x1b[2J", "started": "2026-11-20T08:00:00Z",
		"passthrough": map[string]any{"on": true, "failures": 1, "last_error": "too many open files"},
		"counters": map[string]any{
			"passthrough_opens": 20 * n, "cached_opens": 10 * n, "reads": 100 * n, "spliced_bytes": 4_000_000 * n, "copied_bytes": 2_000 * n,
			"errors": 3, "errors_by_errno": map[string]int64{"EIO": 2, "ESTALE": 1, "ENOSPC": 0},
		},
		"open_files": map[string]int64{"passthrough": 5, "daemon": 2},
		"control": map[string]any{"on": true, "readers": 2, "leases": 7, "clients": []any{
			map[string]any{"name": "train\u202e", "choices": []any{
				map[string]any{"path": "mapped", "reason": "the pages are in memory", "bytes": 20_000_000_000 * n},
				map[string]any{"path": "host", "reason": "", "bytes": 1000},
			}},
		}},
		"origin": map[string]any{"requests": 50 * n, "bytes": 8_000_000 * n, "retries": 2, "latency": []int64{0, 0, 98 * n, 0, 2 * n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		"cache":  map[string]any{"limit": 2_000_000_000_000, "bytes": 500_000_000_000, "pinned": 1_000_000_000, "hits": 10_000 * n, "fetched": 8_000_000 * n, "uncached": 0},
	}
	text, err := json.Marshal(status)
	if err != nil {
		panic(err)
	}
	return top.Sample{Mount: top.Mount{Device: "0:" + point, Points: []string{point, "/var/lib/kubelet/pods/1/mount"}, Whole: true}, Answer: aside.Answer{State: aside.OK, Text: text}, At: topInstant().Add(time.Duration(n) * time.Second)}
}

// brokenSamples are mounts that are not well.
func brokenSamples() []top.Sample {
	at := topInstant().Add(3 * time.Second)
	return []top.Sample{
		{Mount: top.Mount{Device: "0:3", Points: []string{"/mnt/stuck"}, Whole: true}, Answer: aside.Answer{State: aside.Silent, Error: "its daemon gave no answer within 2s: is it stopped or stuck?"}, At: at},
		{Mount: top.Mount{Device: "0:4", Points: []string{"/mnt/dead"}, Whole: true}, Answer: aside.Answer{State: aside.Dead, Error: "its daemon is gone: mount it again, or take it away with hbmfs umount"}, At: at},
		{Mount: top.Mount{Device: "0:5", Points: []string{"/mnt/odd"}, Whole: true}, Answer: aside.Answer{State: aside.OK, Text: []byte(`{"pid": "many"}`)}, At: at},
		{Mount: top.Mount{Device: "0:6", Points: []string{"/a/path/that/is/much/longer/than/what/a/table/has/room/for/pile"}, Whole: true}, Answer: aside.Answer{State: aside.OK, Text: []byte(`{"pid": 7}`)}, At: at},
	}
}

// twoSamples are the rows of mounts after two samples, two seconds apart.
func twoSamples() []top.Row {
	before := top.Rows([]top.Sample{sampleOf("/mnt/pile", 1)}, nil)
	return top.Rows(append(brokenSamples(), sampleOf("/mnt/pile", 3)), before)
}

func TestTopTable(t *testing.T) {
	rows := twoSamples()
	top.Sort(rows, top.ByBytes)
	var b strings.Builder
	if err := writeTable(&b, rows); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		b.WriteByte('\n')
		if err := writeDetails(&b, &rows[i]); err != nil {
			t.Fatal(err)
		}
	}
	golden := filepath.Join("testdata", "top.txt")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the table is\n%s\nwant (%s)\n%s", b.String(), golden, want)
	}
}

func TestTopRates(t *testing.T) {
	rows := twoSamples()
	r := rows[len(rows)-1]
	if r.Rates == nil || r.Answers == nil {
		t.Fatalf("no rates after two samples: %+v", r)
	}
	for what, got := range map[string][2]float64{
		"seconds":           {r.Rates.Seconds, 2},
		"passthrough opens": {r.Rates.PassthroughOpens, 20},
		"daemon opens":      {r.Rates.DaemonOpens, 10},
		"spliced":           {r.Rates.SplicedBytes, 4_000_000},
		"readers":           {r.Rates.ReaderBytes, 20_000_000_000},
		"origin":            {r.Rates.OriginBytes, 8_000_000},
		"hits":              {r.Rates.CacheHitBytes, 10_000},
		"errors":            {r.Rates.Errors, 0},
		"half":              {r.Answers.P50, 0.004},
		"99%":               {r.Answers.P99, 0.016},
		"slowest":           {r.Answers.Slowest, 0.016},
		"answers":           {float64(r.Answers.Count), 200},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %v, want %v", what, got[0], got[1])
		}
	}
	for _, r := range rows[:len(rows)-1] {
		if r.Rates != nil {
			t.Errorf("%s has rates after one sample", r.MountPoint)
		}
	}
	again := sampleOf("/mnt/pile", 4)
	again.Text = []byte(strings.Replace(string(again.Text), "4242", "4243", 1))
	if r := top.Rows([]top.Sample{again}, rows)[0]; r.Rates != nil || r.State != aside.OK {
		t.Errorf("rates across a restart of the daemon: %+v", r)
	}
}

func TestTopOrder(t *testing.T) {
	rows := twoSamples()
	for by, first := range map[string]string{top.ByName: "/a/path", top.ByBytes: "/mnt/pile", top.ByErrors: "/mnt/pile"} {
		slices.Reverse(rows)
		top.Sort(rows, by)
		if !strings.HasPrefix(rows[0].MountPoint, first) {
			t.Errorf("by %s the first is %s, want %s", by, rows[0].MountPoint, first)
		}
	}
}

// press is a key.
func press(m *topModel, keys ...tea.KeyPressMsg) (last tea.Cmd) {
	for _, k := range keys {
		_, last = m.Update(k)
	}
	return last
}

func TestTopModel(t *testing.T) {
	m := &topModel{ctx: t.Context(), sampler: top.NewSampler(self(), "status", time.Minute), interval: time.Hour, by: top.ByName}
	if m.Init() == nil || !strings.Contains(m.text(), "asking") {
		t.Errorf("at first it shows %q", m.text())
	}
	_, next := m.Update(topSampled{samples: append(brokenSamples(), sampleOf("/mnt/pile", 1)), at: topInstant()})
	if next == nil {
		t.Error("no sample is due after a sample")
	}
	m.Update(tea.WindowSizeMsg{Width: 200, Height: 40})
	if text := m.text(); !strings.Contains(text, "mounts: 5, not well: 3") || !strings.Contains(text, reverse+"…") {
		t.Errorf("the screen is\n%s", text)
	}
	down, up := tea.KeyPressMsg{Code: tea.KeyDown}, tea.KeyPressMsg{Code: 'k', Text: "k"}
	press(m, down, down, up, down, down, down, down, down)
	if m.selected != "/mnt/stuck" || !strings.Contains(m.text(), "is it stopped or stuck?") {
		t.Errorf("at the end of the list %s is selected:\n%s", m.selected, m.text())
	}
	press(m, tea.KeyPressMsg{Code: 's', Text: "s"})
	if m.by != top.ByBytes || m.rows[0].MountPoint != "/mnt/pile" && m.rows[0].Bytes() > 0 || m.selected != "/mnt/stuck" {
		t.Errorf("after s: by %s, %s selected", m.by, m.selected)
	}
	m.Update(tea.WindowSizeMsg{Width: 20, Height: 3})
	if text := m.text(); strings.Count(text, "/mnt/") != 2 || !strings.Contains(text, reverse+"/mnt/stuck") { // its line, its details
		t.Errorf("a small screen shows\n%s", text)
	}
	m.Update(topSampled{samples: []top.Sample{sampleOf("/mnt/pile", 2)}, at: topInstant()})
	if m.selected != "/mnt/pile" || !strings.Contains(m.text(), "4.0 MB") {
		t.Errorf("after the selected mount went, %s is selected:\n%s", m.selected, m.text())
	}
	if strings.ContainsAny(strings.ReplaceAll(strings.ReplaceAll(m.text(), reverse, ""), plain, ""), "\x1b\u202e") {
		t.Errorf("what others named gets to the terminal:\n%q", m.text())
	}
	if v := m.View(); !v.AltScreen {
		t.Error("the screen of before is not given back")
	}
	m.Update(topSampled{at: topInstant()})
	if text := m.text(); !strings.Contains(text, "no hbmfs is mounted") {
		t.Errorf("without mounts it shows %q", text)
	}
	for _, k := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: tea.KeyEscape}, {Code: 'c', Mod: tea.ModCtrl}} {
		if quit := press(m, k); quit == nil || quit() != (tea.QuitMsg{}) {
			t.Errorf("%s does not quit", k)
		}
	}
	broken := errors.New("read the mount table: no")
	if _, quit := m.Update(topSampled{err: broken}); quit == nil || !errors.Is(m.err, broken) {
		t.Error("it goes on without a mount table")
	}
}

func TestTopMetrics(t *testing.T) {
	page := "# HELP hbmfs_a_total As.\n# TYPE hbmfs_a_total counter\nhbmfs_a_total 1\n# HELP hbmfs_b Bs.\n# TYPE hbmfs_b gauge\nhbmfs_b{x=\"} 1\"} 2\n# HELP hbmfs_c Cs.\n# TYPE hbmfs_c gauge\n"
	var b strings.Builder
	err := writeMetrics(&b, []top.Sample{
		{Mount: top.Mount{Points: []string{`/mnt/"a"`}}, Answer: aside.Answer{State: aside.OK, Text: []byte(page)}},
		{Mount: top.Mount{Points: []string{"/mnt/b"}}, Answer: aside.Answer{State: aside.OK, Text: []byte(strings.ReplaceAll(page, "As", "All"))}},
		{Mount: top.Mount{Points: []string{"/mnt/c"}}, Answer: aside.Answer{State: aside.Dead}},
	})
	want := `# HELP hbmfs_up 1 where the daemon of a mount answers.
# TYPE hbmfs_up gauge
hbmfs_up{mount="/mnt/\"a\""} 1
hbmfs_up{mount="/mnt/b"} 1
hbmfs_up{mount="/mnt/c"} 0
# HELP hbmfs_a_total As.
# TYPE hbmfs_a_total counter
hbmfs_a_total{mount="/mnt/\"a\""} 1
hbmfs_a_total{mount="/mnt/b"} 1
# HELP hbmfs_b Bs.
# TYPE hbmfs_b gauge
hbmfs_b{mount="/mnt/\"a\"",x="} 1"} 2
hbmfs_b{mount="/mnt/b",x="} 1"} 2
`
	if err != nil || b.String() != want {
		t.Errorf("metrics of all mounts are (%v)\n%s\nwant\n%s", err, b.String(), want)
	}
}

func TestTopUsage(t *testing.T) {
	for _, args := range [][]string{{"--json"}, {"--metrics"}, {"--once", "--json", "--metrics"}, {"--interval", "0s"}, {"--sort", "luck"}, {"more"}} {
		var said strings.Builder
		if code := run(context.Background(), append([]string{"hbmfs", "top"}, args...), &said, &said); code != exitUsage {
			t.Errorf("top %q: exit code %d, want %d: %s", args, code, exitUsage, &said)
		}
	}
}
